"""Write runs as one HTML page: the answer first, then curves, forecasts, completions, settings and metrics.

The page needs no network and shows the same as `scalelab view`; completions are a sample. With --figure or --markdown a
page is written only if -o names one. SOURCE is as for `scalelab fit`.

Example:  scalelab report runs/quickstart -o report.html
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalelab.commands.curve_options import add_fit_arguments, add_source_arguments, fit_options, reading_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source_arguments(parser)
    add_fit_arguments(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="page to write (default report.html)")
    parser.add_argument(
        "--figure", action="append", default=[], type=Path, metavar="FILE", help="draw the fits: .pdf, .svg or .png"
    )
    parser.add_argument(
        "--width",
        type=float,
        metavar="INCHES",
        help="width of the figures, such as 3.3 for a journal's column (default 7)",
    )
    parser.add_argument("--markdown", action="store_true", help="print a summary in Markdown")


def run(args: argparse.Namespace) -> int:
    """Write the output that was asked for, and print its path."""
    from scalelab.report.markdown import markdown
    from scalelab.report.page import read_lab, write_page
    from scalelab.report.plots import WIDTH, check_figure, check_width, plot_fits

    width = WIDTH if args.width is None else args.width
    check_width(width)
    for path in args.figure:
        check_figure(path)
    lab = read_lab([Path(source) for source in args.sources], fit_options(args), reading_from(args))
    if args.pool:
        lab.pool(args.pool)
    overview = lab.overview(progress=_progress)
    if args.markdown:
        print(markdown(overview), end="")
    for path in args.figure:
        fitted = [item for item in lab.curves if "refused" not in lab.judge.fit(item)]
        plot_fits(lab.curves, [lab.judge.analysis(item) for item in fitted], path, width=width)
        print(path)
    if args.out or not (args.markdown or args.figure):
        print(write_page(lab, args.out or Path("report.html")))
    return 0


def _progress(done: int, total: int) -> None:
    """Show on a terminal how many fits are done."""
    if sys.stderr.isatty():
        print(f"\rfits: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
