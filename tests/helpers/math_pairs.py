"""Gold answers and answers as models write them, one pair a line, judged by hand."""

SEPARATOR = "  ≡  "


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((gold, answer) for gold, _, answer in (line.partition(SEPARATOR) for line in text.strip().split("\n")))


RIGHT = (
    *_pairs(r"""
12  ≡  (3+1)(1+2)
6  ≡  (1+1) \cdot (1+2)
6  ≡  \gcd(12,18)
42  ≡  42
42  ≡  42.
42  ≡  +42
-7  ≡  −7
1234567  ≡  1,234,567
1234567  ≡  1{,}234{,}567
1234567  ≡  1\,234\,567
0.5  ≡  .5
0.50  ≡  0.5
12  ≡  12.0
1000000  ≡  10^6
5  ≡  5.000
6.02e23  ≡  6.02 \times 10^{23}
1024  ≡  2^{10}
3628800  ≡  10!
3  ≡  \sqrt{9}
8  ≡  \sqrt[3]{512}
7  ≡  7 \text{ apples}
3.5  ≡  3,5
0,25  ≡  \frac{1}{4}
12,75  ≡  12.75
1e-3  ≡  0.001
2^{100}  ≡  1267650600228229401496703205376
30!  ≡  265252859812191058636308480000000
\frac{3}{4}  ≡  3/4
\frac{3}{4}  ≡  0.75
\frac34  ≡  \dfrac{3}{4}
\frac{3}{4}  ≡  \tfrac{6}{8}
-\frac{1}{2}  ≡  \frac{-1}{2}
-\frac{1}{2}  ≡  \frac{1}{-2}
1\frac{1}{2}  ≡  3/2
1\frac{1}{2}  ≡  1.5
\frac{1}{3}  ≡  0.\overline{3}
\frac{\pi}{2}  ≡  \pi/2
\frac{\sqrt{2}}{2}  ≡  \frac{1}{\sqrt{2}}
\frac{1}{\sqrt{3}}  ≡  \frac{\sqrt{3}}{3}
\frac{a}{b}  ≡  a/b
7/2  ≡  \frac72
50\%  ≡  50%
50\%  ≡  0.5
50\%  ≡  50
0.25  ≡  25%
25\%  ≡  \frac{1}{4}
1.5 \text{ m}  ≡  150 cm
150 \text{ cm}  ≡  1.5 m
1500 \text{ m}  ≡  1.5 km
2 \text{ hours}  ≡  120 minutes
90^\circ  ≡  90
90  ≡  90^{\circ}
90^\circ  ≡  90 degrees
\$12.50  ≡  12.50
12.5  ≡  \$12.50
1.5 \text{ kg}  ≡  1500 g
10 \text{ cm}^2  ≡  10
12 \text{ inches}  ≡  1 foot
5 \text{ dollars}  ≡  \$5
45 \text{ mph}  ≡  45 \text{mph}
3 \text{ m}  ≡  3\,\mathrm{m}
10 \text{ cm}  ≡  10\text{cm}
20 \text{ seconds}  ≡  20 s
6 \text{ ft}  ≡  6 feet
3 \text{ hours}  ≡  3 h
5 \text{ minutes}  ≡  5 min
5  ≡  \mathbf{5}
5  ≡  \underline{5}
5  ≡  \color{red}{5}
5  ≡  {\color{blue} 5}
5  ≡  \textcolor{red}{5}
5  ≡  \boxed{5}
5  ≡  \displaystyle 5
\left(1,2\right)  ≡  (1, 2)
(1,2)  ≡  \left( 1,\ 2 \right)
5  ≡  \underline{\underline{5}}
5  ≡  (((5)))
5  ≡  <answer>5</answer>
x=5  ≡  5
5  ≡  x = 5
5  ≡  \text{The answer is } 5
5  ≡  5 \checkmark
5  ≡  \Large 5
\pi  ≡  π
2\pi  ≡  2 π
x \leq 3  ≡  x ≤ 3
5  ≡  \approx 5
5  ≡  **5**
5  ≡  $5$
5  ≡  \(5\)
5  ≡  \fbox{5}
\text{Friday}  ≡  Friday
\text{Friday}  ≡  friday
B  ≡  (B)
B  ≡  \text{B}
B  ≡  (B) 42
B  ≡  B) 42
B  ≡  B. 42
\text{(B)}  ≡  B
B  ≡  \textbf{(B)}\ 42
\text{yes}  ≡  Yes
\text{True}  ≡  true
C  ≡  \mathrm{(C)}\, \frac{1}{2}
\text{no solution}  ≡  \emptyset
\emptyset  ≡  \text{No solution}
\emptyset  ≡  \varnothing
\varnothing  ≡  \{\}
\emptyset  ≡  no real solutions
\text{odd}  ≡  \text{Odd}
\text{even}  ≡  even.
\infty  ≡  ∞
-\infty  ≡  -∞
(0,1)  ≡  ]0,1[
[0,1)  ≡  [0,1[
(-\infty,2]  ≡  (-∞, 2]
[2,5]  ≡  2 \leq x \leq 5
(2,3]  ≡  2<x\le 3
\{1,2,3\}  ≡  \{3,2,1\}
\{1,2\}  ≡  1, 2
1,2  ≡  2, 1
1,2  ≡  1 \text{ and } 2
1,-2  ≡  x=1 \text{ or } x=-2
(1,2)  ≡  (1,2)
(\frac12,3)  ≡  (0.5, 3)
(1,2),(3,4)  ≡  (3,4), (1,2)
(-\infty,1)\cup(2,\infty)  ≡  x<1 \text{ or } x>2
\{-1, 1\}  ≡  \pm 1
\pm 2  ≡  2, -2
(-1,1)  ≡  -1 < x < 1
\mathbb{R}  ≡  (-\infty, \infty)
[3,\infty)  ≡  x \ge 3
\{2\}  ≡  2
x^2+2x+1  ≡  (x+1)^2
2x+3  ≡  3+2x
\ln 2  ≡  \log 2
\ln(2)  ≡  \ln 2
y=2x+1  ≡  y = 1 + 2x
2x+1  ≡  y=2x+1
\frac{n(n+1)}{2}  ≡  \frac{n^2+n}{2}
\sin^2 x+\cos^2 x  ≡  1
\log_2 8  ≡  3
e^{\ln 3}  ≡  3
2\sqrt{3}  ≡  \sqrt{12}
\frac{1}{1-x}  ≡  -\frac{1}{x-1}
n!  ≡  n \cdot (n-1)!
\binom{5}{2}  ≡  10
\frac{\ln 3}{\ln 2}  ≡  \log_2 3
\frac{n(n+1)}{2}  ≡  \sum_{k=1}^{n} k
55  ≡  \sum_{k=1}^{10} k
3+4i  ≡  4i+3
-2+3i  ≡  3i-2
2^{x+1}  ≡  2 \cdot 2^x
\sqrt{x^2+1}  ≡  (x^2+1)^{1/2}
x^2-1=0  ≡  x^2=1
\cos 60^\circ  ≡  \frac12
\begin{pmatrix}1\\2\end{pmatrix}  ≡  \begin{bmatrix}1\\2\end{bmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix}  ≡  \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\frac{3}{2}  ≡  1+\frac12
(x-1)(x+2)  ≡  x^2+x-2
17_9  ≡  17_{9}
1011_2  ≡  1011_{2}
10:30  ≡  10:30
10:30 \text{ a.m.}  ≡  10:30 AM
3:4  ≡  3 : 4
May 5  ≡  May 5
5 May 2024  ≡  May 5, 2024
2:1  ≡  2 to 1
July 4, 1776  ≡  4 July 1776
"""),
    ("5", "(" * 400 + "5" + ")" * 400),
)

WRONG = _pairs(r"""
63  ≡  (5,2)
0  ≡  \begin{pmatrix} 0 & 0 \\ 0 & 0 \end{pmatrix}
(1, 4)  ≡  168
\text{neither}  ≡  -15
4  ≡  \text{neither}
3  ≡  (-\infty,\infty)
2^{100}  ≡  1267650600228229401496703205377
1267650600228229401496703205376  ≡  2^{100}+1
30!  ≡  30!+1
30!  ≡  265252859812191058636308480000001
10^{30}  ≡  10^{30}+1
\binom{100}{50}  ≡  \binom{100}{50}+1
2^{64}  ≡  2^{64}-1
10^{25}  ≡  10^{25}-7
3^{50}  ≡  717897987691852588770248
\frac{10^{30}}{3}  ≡  \frac{10^{30}+1}{3}
99!  ≡  99!-1
7^{77}+3  ≡  7^{77}+4
\frac{1}{3}  ≡  0.333333
\frac{1}{3}  ≡  0.33
42  ≡  43
42  ≡  -42
5  ≡  6=5
5  ≡  50
17_9  ≡  17
17  ≡  17_9
0.1  ≡  0.10001
10^{-20}  ≡  10^{-21}
100  ≡  1
1234  ≡  1,23,4.5
(1,2)  ≡  \{1,2\}
(1,2)  ≡  (2,1)
(1,2)  ≡  [1,2]
[1,2]  ≡  (1,2)
(0,1]  ≡  ]0,1[
\{1,2\}  ≡  \{1,2,3\}
\{1,2,3\}  ≡  \{1,2\}
1,2  ≡  1
1  ≡  1,2
(1,2,3)  ≡  (1,2)
(1,2)  ≡  (1,3)
\begin{pmatrix}1\\2\end{pmatrix}  ≡  \begin{pmatrix}2\\1\end{pmatrix}
[2,5]  ≡  2<x<5
x>3  ≡  x\ge 3
(2,\infty)  ≡  x<2
\pm 2  ≡  2
2  ≡  \pm 2
\mathbb{R}  ≡  \emptyset
12 \text{ cm}  ≡  12 m
12 \text{ cm}  ≡  12 \text{ inches}
1.5 \text{ m}  ≡  15 cm
\frac13  ≡  10:30
10:30  ≡  \frac13
10:30  ≡  10:31
10:30 \text{ a.m.}  ≡  10:30 p.m.
3:4  ≡  4:3
ABC  ≡  CBA
CBA  ≡  ABC
B  ≡  C
B  ≡  (C) 42
B  ≡  A and B
B  ≡  A, B, C, D
B  ≡  (B) or (C)
1,2  ≡  1.2
\text{yes}  ≡  no
\text{Friday}  ≡  Saturday
50\%  ≡  5
50\%  ≡  0.05
90^\circ  ≡  9^\circ
May 5  ≡  May 6
May 5, 2024  ≡  May 5, 2023
12 \text{ hours}  ≡  12 minutes
5 \text{ kg}  ≡  5 \text{ pounds}
x^2  ≡  x^3
(x+1)^2  ≡  x^2+1
2x+3  ≡  2x-3
x  ≡  y
\sin x  ≡  \cos x
\ln 2  ≡  \ln 3
\log_{10} 2  ≡  \ln 2
\ln 2  ≡  \log_{10} 2
\sqrt{2}  ≡  1.4
\pi  ≡  3.14
\pi  ≡  \frac{22}{7}
e  ≡  2.7
3+4i  ≡  3-4i
y=2x+1  ≡  y=2x
\sum_{k=1}^{10} k  ≡  54
\infty  ≡  -\infty
\text{no solution}  ≡  0
\emptyset  ≡  0
n!  ≡  n
x^2-1=0  ≡  x^2=2
5  ≡  4 or 5
5  ≡  5, 6
5  ≡  3, 4, 5
5  ≡  \text{}
5  ≡  ?
5  ≡  n
12  ≡  1 2
5  ≡  five or six
""")
