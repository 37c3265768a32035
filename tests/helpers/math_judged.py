"""Answers judged by hand, kind by kind, before any grader saw them: `≡` means right, `≢` wrong.

A line is a gold answer, the judgement, and what stands in the box. In `COMPLETIONS` the last is a whole completion,
with `⏎` for a new line.
"""

# ruff: noqa: E501 - a pair is a line

JUDGED = r"""
# number
7  ≡  7.0
7  ≡  \frac{14}{2}
7  ≡  2^3-1
7  ≢  7.01
7  ≢  -7
7  ≢  70
7  ≢  7!
7  ≢  7 + \epsilon
7  ≢  7 \cdot 10^{2}
0.125  ≡  \frac18
0.125  ≡  12.5\%
0.125  ≢  0.0125
-\frac{5}{3}  ≡  -1\frac{2}{3}
-\frac{5}{3}  ≡  \frac{5}{-3}
-\frac{5}{3}  ≢  1\frac{2}{3}
-\frac{5}{3}  ≢  -1.66
2{,}500{,}000  ≡  2.5 \times 10^6
2{,}500{,}000  ≡  2.5 \text{ million}
2{,}500{,}000  ≢  2.5 \text{ billion}
2{,}500{,}000  ≢  2.5
3.0 \times 10^8  ≡  300000000
3.0 \times 10^8  ≡  3e8
3.0 \times 10^8  ≢  3.0 \times 10^{-8}
3.0 \times 10^8  ≢  3.0 \times 10^9
\frac{22}{7}  ≢  \pi
\frac{22}{7}  ≡  3\frac{1}{7}
\frac{22}{7}  ≡  3.\overline{142857}
0.\overline{36}  ≡  \frac{4}{11}
0.\overline{36}  ≢  0.36
24  ≡  4!
24  ≡  \text{twenty-four}
720  ≡  6!
720  ≢  6
\frac{1}{1024}  ≡  2^{-10}
\frac{1}{1024}  ≢  2^{10}
1000  ≡  \text{one thousand}
36  ≡  3 \text{ dozen}
12  ≢  12 \text{ dozen}
5  ≢  5 \text{ hundred}
5  ≢  5 \text{ or } 6
5  ≢  5, 7
5  ≢  \text{not } 5
5  ≢  >5
5  ≢  5 \text{ (rejected)}, 6
5  ≢  \frac{5}{0}
0  ≢  \frac{1}{\infty}
1  ≢  \frac{0}{0}
\frac{3}{8}  ≡  3/8
\frac{3}{8}  ≡  .375
\frac{3}{8}  ≢  8/3
\frac{3}{8}  ≢  3:8:1
15  ≡  \left(15\right)
15  ≡  {15}
15  ≡  \mathbf{15}
15  ≡  15.
15  ≡  \(15\)
15  ≢  51
15  ≢  1,5
# irrational
2\sqrt{3}  ≡  \sqrt{12}
2\sqrt{3}  ≡  \frac{6}{\sqrt{3}}
2\sqrt{3}  ≡  2 \cdot 3^{1/2}
2\sqrt{3}  ≡  2\sqrt3
2\sqrt{3}  ≢  3\sqrt{2}
2\sqrt{3}  ≢  \sqrt{6}
2\sqrt{3}  ≢  -2\sqrt{3}
2\sqrt{3}  ≢  3.46
\frac{\pi}{6}  ≡  \frac{2\pi}{12}
\frac{\pi}{6}  ≡  \pi/6
\frac{\pi}{6}  ≡  \frac{1}{6}\pi
\frac{\pi}{6}  ≢  \frac{\pi}{3}
\frac{\pi}{6}  ≢  \frac{6}{\pi}
\frac{\pi}{6}  ≢  30
1+\sqrt{2}  ≡  \sqrt{2}+1
1+\sqrt{2}  ≡  \frac{1}{\sqrt{2}-1}
1+\sqrt{2}  ≢  1-\sqrt{2}
1+\sqrt{2}  ≢  1 \pm \sqrt{2}
\sqrt[3]{16}  ≡  2\sqrt[3]{2}
\sqrt[3]{16}  ≡  2^{4/3}
\sqrt[3]{16}  ≢  4
\sqrt[3]{16}  ≢  \sqrt{16}
\log_2 10  ≡  \frac{\ln 10}{\ln 2}
\log_2 10  ≡  1+\log_2 5
\log_2 10  ≢  \log_{10} 2
e^{2}  ≡  \mathrm{e}^{2}
e^{2}  ≡  \exp(2)
e^{2}  ≢  2e
e^{2}  ≢  2^e
\arctan 2  ≡  \tan^{-1}(2)
\arctan 2  ≢  \frac{1}{\tan 2}
\frac{1+\sqrt5}{2}  ≡  \frac{\sqrt5+1}{2}
\frac{1+\sqrt5}{2}  ≢  \frac{\sqrt5-1}{2}
\sin 75^\circ  ≡  \frac{\sqrt6+\sqrt2}{4}
\sin 75^\circ  ≢  \cos 75^\circ
# quantity
12 \text{ cm}  ≡  0.12 \text{ m}
12 \text{ cm}  ≡  120 \text{ mm}
12 \text{ cm}  ≡  12
12 \text{ cm}  ≡  12\,\mathrm{cm}
12 \text{ cm}  ≢  12 \text{ mm}
12 \text{ cm}  ≢  12 \text{ cm}^2
12 \text{ cm}  ≢  1.2 \text{ m}
12 \text{ cm}  ≢  12 \text{ kg}
9.8 \text{ m/s}^2  ≡  9.8 \mathrm{~m} / \mathrm{s}^{2}
9.8 \text{ m/s}^2  ≡  9.8\ \text{m s}^{-2}
9.8 \text{ m/s}^2  ≢  9.8 \text{ m/s}
60 \text{ mph}  ≡  60 \text{ miles per hour}
60 \text{ mph}  ≢  60 \text{ km/h}
72 \text{ km/h}  ≡  20 \text{ m/s}
72 \text{ km/h}  ≢  72 \text{ m/s}
3 \text{ kW}  ≡  3000 \text{ W}
3 \text{ kW}  ≢  3 \text{ W}
3 \text{ kW}  ≢  3 \text{ kWh}
5 \text{ GHz}  ≢  5 \text{ MHz}
5 \text{ GHz}  ≡  5000 \text{ MHz}
25 \text{ J}  ≡  25 \text{ N m}
25 \text{ J}  ≢  25 \text{ W}
101 \text{ kPa}  ≡  101000 \text{ Pa}
4.5 \text{ hours}  ≡  4 \text{ hours } 30 \text{ minutes}
4.5 \text{ hours}  ≡  270 \text{ minutes}
4.5 \text{ hours}  ≢  4 \text{ hours } 50 \text{ minutes}
4.5 \text{ hours}  ≢  4.5 \text{ minutes}
5\text{ feet } 10 \text{ inches}  ≡  70 \text{ inches}
5\text{ feet } 10 \text{ inches}  ≢  5 \text{ feet } 1 \text{ inch}
\$15  ≡  15 \text{ dollars}
\$15  ≡  \$15.00
\$15  ≡  1500 \text{ cents}
\$15  ≢  15 \text{ cents}
\$15  ≢  \$1.50
\$15  ≢  15\%
20\%  ≡  0.2
20\%  ≡  \frac15
20\%  ≡  20 \text{ percent}
20\%  ≢  2\%
20\%  ≢  0.02
45^\circ  ≡  45 \text{ degrees}
45^\circ  ≢  45 \text{ radians per second}
45^\circ  ≢  54^\circ
100^{\circ}\mathrm{C}  ≡  100\text{ degrees Celsius}
100^{\circ}\mathrm{C}  ≢  100^{\circ}\mathrm{F}
2 \text{ liters}  ≡  2000 \text{ mL}
2 \text{ liters}  ≢  2 \text{ mL}
50 \text{ square feet}  ≡  50 \text{ ft}^2
50 \text{ square feet}  ≢  50 \text{ feet}
8 \text{ apples}  ≡  8
8 \text{ apples}  ≡  8 \text{ apples}
8 \text{ apples}  ≢  8 \text{ oranges}
8 \text{ apples}  ≢  9 \text{ apples}
8  ≢  8 \text{ less than } 10
8  ≢  8 \text{ squared}
8  ≢  8 \text{ to } 10
8  ≡  8 \text{ ways}
8  ≢  8 \text{ thousand}
6  ≢  6 \text{ and a half}
6  ≢  6 \text{ boys and } 7 \text{ girls}
6^{\text{th}}  ≡  6
# expression
x^2-4  ≡  (x-2)(x+2)
x^2-4  ≡  -4+x^2
x^2-4  ≢  x^2+4
x^2-4  ≢  (x-2)^2
x^2-4  ≢  y^2-4
\frac{a+b}{2}  ≡  \frac{a}{2}+\frac{b}{2}
\frac{a+b}{2}  ≡  0.5(a+b)
\frac{a+b}{2}  ≢  a+\frac{b}{2}
\frac{a+b}{2}  ≢  \frac{a-b}{2}
\sqrt{a^2+b^2}  ≢  a+b
n(n+1)  ≡  n^2+n
n(n+1)  ≢  n^2+1
2^{n+1}-2  ≡  2(2^n-1)
2^{n+1}-2  ≢  2^{n+2}-1
e^{-kt}  ≡  \frac{1}{e^{kt}}
e^{-kt}  ≢  e^{kt}
\sin 2x  ≡  2\sin x\cos x
\sin 2x  ≢  2\sin x
\cos^2 x  ≡  1-\sin^2 x
\cos^2 x  ≢  \cos x^2
\ln(xy)  ≡  \ln x+\ln y
\ln(xy)  ≢  \ln x \ln y
\frac{1}{x-1}-\frac{1}{x+1}  ≡  \frac{2}{x^2-1}
\frac{1}{x-1}-\frac{1}{x+1}  ≢  \frac{2}{x^2+1}
\binom{n}{2}  ≡  \frac{n(n-1)}{2}
\binom{n}{2}  ≢  \frac{n(n+1)}{2}
v_0 t+\frac12 a t^2  ≡  \frac{at^2}{2}+v_0t
v_0 t+\frac12 a t^2  ≢  v_0 t+a t^2
v_0 t+\frac12 a t^2  ≢  v_1 t+\frac12 a t^2
\gamma m c^2  ≡  mc^2\gamma
\gamma m c^2  ≢  \lambda m c^2
\frac{GMm}{r^2}  ≡  G\frac{Mm}{r^{2}}
\frac{GMm}{r^2}  ≢  \frac{GMm}{r}
3-2i  ≡  -2i+3
3-2i  ≡  3-2\mathrm{i}
3-2i  ≢  3+2i
3-2i  ≢  3-2
|x-3|  ≡  |3-x|
|x-3|  ≢  x-3
x^3+C  ≡  x^3+c
x^3+C  ≢  x^3+Cx
\ln|x|+C  ≢  \ln|x|
\lfloor x \rfloor  ≢  \lceil x \rceil
\lfloor x \rfloor  ≢  x
f(a+b)  ≢  f(a)+f(b)
2f(x)  ≢  f(2x)
\frac{dy}{dx}  ≢  \frac{y}{x}
x_1+x_2  ≡  x_2+x_1
x_1+x_2  ≢  x_1-x_2
x'+y  ≢  x+y
# equation
y=3x-2  ≡  3x-y=2
y=3x-2  ≡  y+2=3x
y=3x-2  ≡  3x-2
y=3x-2  ≢  y=3x+2
y=3x-2  ≢  y=2x-3
y=3x-2  ≢  x=3y-2
y=3x-2  ≢  y=y
(x-1)^2+(y+2)^2=9  ≡  x^2+y^2-2x+4y-4=0
(x-1)^2+(y+2)^2=9  ≢  (x-1)^2+(y+2)^2=3
(x-1)^2+(y+2)^2=9  ≢  (x+1)^2+(y-2)^2=9
(x-1)^2+(y+2)^2=9  ≢  9
x=4  ≡  4
x=4  ≡  4=x
x=4  ≢  x=-4
x=4  ≢  y=4
x=4  ≢  2x=4
x=4  ≢  x>4
4  ≡  x=4
4  ≢  4=5
4  ≢  x=3=4
4  ≡  2+2=4
4  ≢  x-4=0 \text{ or } x=5
y^2=4x  ≡  4x=y^2
y^2=4x  ≢  x^2=4y
f(x)=x^2+1  ≡  x^2+1
f(x)=x^2+1  ≡  f(x)=1+x^2
f(x)=x^2+1  ≢  f(x)=x^2-1
x^2+y^2=1  ≢  1=1
x^2+1=0  ≢  x^2+2=0
x^2+1=0  ≢  0=1
I=\frac{V}{R}  ≢  I=VR
I=\frac{V}{R}  ≡  \frac{V}{R}
E=mc^2  ≢  E=mc^3
\theta \approx 0.73  ≡  0.73
\theta \approx 0.73  ≢  0.37
\theta \approx 0.73  ≢  \theta \approx 0.93
# inequality and set
x>3  ≡  (3,\infty)
x>3  ≡  3<x
x>3  ≡  x \in (3,\infty)
x>3  ≡  \{x \mid x>3\}
x>3  ≢  x\geq 3
x>3  ≢  x<3
x>3  ≢  3
x>3  ≢  [3,\infty)
-1 \le x < 4  ≡  [-1,4)
-1 \le x < 4  ≡  4 > x \ge -1
-1 \le x < 4  ≡  \{x : -1 \le x < 4\}
-1 \le x < 4  ≢  (-1,4)
-1 \le x < 4  ≢  -1 \le x \le 4
-1 \le x < 4  ≢  x<4
(-\infty,0)\cup(0,\infty)  ≡  x \ne 0
(-\infty,0)\cup(0,\infty)  ≡  \mathbb{R}\setminus\{0\}
(-\infty,0)\cup(0,\infty)  ≡  x<0 \text{ or } x>0
(-\infty,0)\cup(0,\infty)  ≢  \mathbb{R}
(-\infty,0)\cup(0,\infty)  ≢  (-\infty,0]\cup(0,\infty)
[0,1]\cup[2,3]  ≡  [2,3]\cup[0,1]
[0,1]\cup[2,3]  ≢  [0,3]
[0,1]\cup[2,3]  ≢  [0,1]\cap[2,3]
[0,1]\cup[2,3]  ≢  [0,1]
[-\sqrt{2},\sqrt{2}]  ≡  -\sqrt2 \le x \le \sqrt2
[-\sqrt{2},\sqrt{2}]  ≡  |x| \le \sqrt{2}
[-\sqrt{2},\sqrt{2}]  ≢  (-\sqrt2,\sqrt2)
[-\sqrt{2},\sqrt{2}]  ≢  [-2,2]
\{1,2,3\}  ≡  \{2,3,1\}
\{1,2,3\}  ≡  1, 2, 3
\{1,2,3\}  ≡  x \in \{1,2,3\}
\{1,2,3\}  ≢  \{1,2\}
\{1,2,3\}  ≢  \{1,2,4\}
\{1,2,3\}  ≢  (1,2,3)
\{1,2,3\}  ≢  [1,3]
\emptyset  ≡  \text{no solution}
\emptyset  ≡  \{\}
\emptyset  ≢  \{0\}
\emptyset  ≢  \mathbb{R}
\mathbb{R}  ≡  \text{all real numbers}
\mathbb{R}  ≡  (-\infty,+\infty)
\mathbb{R}  ≢  \mathbb{Z}
a \le -2  ≡  (-\infty,-2]
a \le -2  ≢  (-\infty,2]
2x+y<4  ≡  y<4-2x
2x+y<4  ≢  y>4-2x
\{x \mid x=2k, k \in \mathbb{Z}\}  ≡  \{2k \mid k \in \mathbb{Z}\}
\{x \mid x=2k, k \in \mathbb{Z}\}  ≢  \{x \mid x=2k+1, k \in \mathbb{Z}\}
k \neq 0 \text{ and } k \neq 1  ≡  k \ne 0, 1
k \neq 0 \text{ and } k \neq 1  ≢  k \ne 0
# tuple and list
(3,-4)  ≡  \left(3, -4\right)
(3,-4)  ≡  (\frac{6}{2}, -4.0)
(3,-4)  ≡  x=3, y=-4
(3,-4)  ≢  (-4,3)
(3,-4)  ≢  (3,4)
(3,-4)  ≢  (3,-4,0)
(3,-4)  ≢  3-4
(3,-4)  ≢  \{3,-4\}
(3,-4)  ≢  \emptyset
(1,2,3)  ≡  \langle 1,2,3\rangle
(1,2,3)  ≢  (1,3,2)
(1,2,3)  ≢  1,2
2, 3, 5  ≡  5, 3, 2
2, 3, 5  ≡  2,3,\text{ and }5
2, 3, 5  ≡  x=2, x=3, x=5
2, 3, 5  ≡  \{2,3,5\}
2, 3, 5  ≢  2, 3
2, 3, 5  ≢  2, 3, 5, 7
2, 3, 5  ≢  2, 3, 6
2, 3, 5  ≢  10
\pm 3  ≡  3, -3
\pm 3  ≡  x = \pm 3
\pm 3  ≢  3
\pm 3  ≢  \pm 4
1 \pm \sqrt{5}  ≡  1+\sqrt5, 1-\sqrt5
1 \pm \sqrt{5}  ≢  1+\sqrt5
1 \pm \sqrt{5}  ≢  -1 \pm \sqrt{5}
0, \pm 1  ≡  -1, 0, 1
0, \pm 1  ≢  2, \pm 1
(1,2),(2,1)  ≡  (2,1),(1,2)
(1,2),(2,1)  ≡  (2,1) \text{ and } (1,2)
(1,2),(2,1)  ≢  (1,2)
(1,2),(2,1)  ≢  (1,2),(1,2)
a=2, b=-3  ≡  b=-3, a=2
a=2, b=-3  ≡  (2,-3)
a=2, b=-3  ≢  a=-3, b=2
a=2, b=-3  ≢  (-3,2)
a=2, b=-3  ≢  -3, 2
1,4,9,\ldots,n^2  ≡  1, 4, 9, \dots, n^2
1,4,9,\ldots,n^2  ≢  1, 4, 9, \ldots, n^3
1,4,9,\ldots,n^2  ≢  1, 4, 9
2:3:5  ≡  4:6:10
2:3:5  ≢  5:3:2
2:3  ≡  2 : 3
2:3  ≢  3:2
# matrix and system
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}  ≡  \begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}  ≡  \left[\begin{array}{cc} 1 & 0 \\ 0 & 1 \end{array}\right]
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}  ≢  \begin{pmatrix} 0 & 1 \\ 1 & 0 \end{pmatrix}
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}  ≢  1
\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}  ≡  \begin{pmatrix} 0.5 \\ 3 \end{pmatrix}
\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}  ≡  \frac12\begin{pmatrix} 1 \\ 6 \end{pmatrix}
\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}  ≢  \begin{pmatrix} 1/2 & 3 \end{pmatrix}
\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}  ≢  \begin{pmatrix} 1/2 \\ -3 \end{pmatrix}
\begin{cases} x=1 \\ y=-2 \end{cases}  ≡  x=1, y=-2
\begin{cases} x=1 \\ y=-2 \end{cases}  ≡  (1,-2)
\begin{cases} x=1 \\ y=-2 \end{cases}  ≢  \begin{cases} x=1 \\ y=2 \end{cases}
\begin{cases} x=1 \\ y=-2 \end{cases}  ≢  -2
f(x)=\begin{cases} x & x \ge 0 \\ -x & x<0 \end{cases}  ≡  \begin{cases} -x & \text{if } x<0 \\ x & \text{if } x\ge 0 \end{cases}
f(x)=\begin{cases} x & x \ge 0 \\ -x & x<0 \end{cases}  ≢  \begin{cases} x & x \ge 0 \\ 2x & x<0 \end{cases}
f(x)=\begin{cases} x & x \ge 0 \\ -x & x<0 \end{cases}  ≢  x
# congruence and family
x \equiv 2 \pmod{5}  ≡  x \equiv 7 \pmod 5
x \equiv 2 \pmod{5}  ≡  x \equiv 2 \ (\text{mod } 5)
x \equiv 2 \pmod{5}  ≢  x \equiv 3 \pmod{5}
x \equiv 2 \pmod{5}  ≢  x \equiv 2 \pmod{7}
x \equiv 2 \pmod{5}  ≢  2
x=\frac{\pi}{4}+k\pi, k \in \mathbb{Z}  ≡  x=\frac{\pi}{4}+n\pi, n \in \mathbb{Z}
x=\frac{\pi}{4}+k\pi, k \in \mathbb{Z}  ≡  \frac{\pi}{4}+\pi k \text{ for any integer } k
x=\frac{\pi}{4}+k\pi, k \in \mathbb{Z}  ≢  x=\frac{\pi}{4}+2k\pi, k \in \mathbb{Z}
x=\frac{\pi}{4}+k\pi, k \in \mathbb{Z}  ≢  x=\frac{\pi}{4}
f(x)=cx  ≢  f(x)=c+x
f(x)=x \text{ for all } x \in \mathbb{R}  ≡  f(x)=x
f(x)=x \text{ for all } x \in \mathbb{R}  ≢  f(x)=-x
n \mid 12  ≢  12 \mid n
AB \perp CD  ≢  AB \parallel CD
x \to \infty  ≢  x \to -\infty
# clock, date, choice, word
3:45 \text{ p.m.}  ≡  3:45 PM
3:45 \text{ p.m.}  ≡  3:45
3:45 \text{ p.m.}  ≢  3:45 \text{ a.m.}
3:45 \text{ p.m.}  ≢  4:45 \text{ p.m.}
\text{March 14}  ≡  14 \text{ March}
\text{March 14}  ≢  \text{March 15}
\text{March 14}  ≢  \text{May 14}
C  ≡  \text{(C)}
C  ≡  \textbf{(C)}\ 12
C  ≡  C. 12
C  ≢  D
C  ≢  \text{(C) or (D)}
C  ≢  AC
C  ≢  \text{not C}
12  ≡  \textbf{(C)}\ 12
12  ≢  \textbf{(C)}\ 13
\text{increasing}  ≡  increasing
\text{increasing}  ≡  \text{The function is increasing}
\text{increasing}  ≢  decreasing
\text{increasing}  ≢  \text{not increasing}
\text{Yes}  ≡  yes
\text{Yes}  ≢  no
\text{isosceles triangle}  ≡  \text{Isosceles Triangle}
\text{isosceles triangle}  ≢  \text{right triangle}
\text{undefined}  ≡  \text{Undefined}
\text{undefined}  ≢  \frac{1}{0}
\text{infinitely many}  ≡  \text{infinitely many solutions}
\text{infinitely many}  ≢  \text{no solution}
\infty  ≡  +\infty
\infty  ≢  -\infty
\infty  ≢  \frac{1}{0}
PQRS  ≢  PRQS
# hedge and unreadable
9  ≢  9 \text{ or } 10
9  ≢  \{9, 10\}
9  ≢  9 \lor 10
9  ≢  9 \text{ if } n \text{ even}, 10 \text{ if } n \text{ odd}
9  ≢  8 < 9
9  ≢  9 \pm 1
9  ≢  [9, 10]
9  ≢  9 \ne 10
9  ≢  \sqrt{9^{2}+x^2}
9  ≢  f(9)
9  ≢  a_9
9  ≢  9a
9  ≢  \approx 10
9  ≢  9?10
9  ≢  \frac{9}{
9  ≢  9\}\{
9  ≢  \foo{9}
9  ≢  \text{nine or ten}
9  ≢  9 \to 10
9  ≢  9 \mid 10
9  ≢  9-
9  ≢  9..
9  ≢  9 10
9  ≢  \phantom{9}
9  ≢  \cancel{9}
# public sets and hedges
$\frac{1}{2}\left(n^{2}-n+2\right)$  ≡  \frac{n^2-n+2}{2}
$\frac{1}{2}\left(n^{2}-n+2\right)$  ≡  \binom{n}{2}+1
$2^{n-1}$  ≡  \frac{2^n}{2}
$f(x)=\frac{1}{2}\left(x+1-\frac{1}{x}-\frac{1}{1-x}\right)$  ≡  f(x) = \frac{1}{2}\left(x + 1 - \frac{1}{x} + \frac{1}{x-1}\right)
$f(x)=\frac{1}{2}\left(x+1-\frac{1}{x}-\frac{1}{1-x}\right)$  ≢  f(x) = \frac{1}{2}\left(x + 1 - \frac{1}{x} + \frac{1}{x+1}\right)
$\left(\frac{1}{2}, \frac{\sqrt{3}}{2}\right)$  ≡  (1/2, \sqrt{3}/2)
$\frac{\sqrt{6}}{3},-\frac{\sqrt{6}}{3}$  ≡  \pm\frac{\sqrt6}{3}
$\frac{\sqrt{6}}{3},-\frac{\sqrt{6}}{3}$  ≡  \pm \sqrt{\frac{2}{3}}
$[-2,1)$  ≡  -2 \leqslant x < 1
$x=2^{3/4}$  ≡  \sqrt[4]{8}
$n \ge 3$ odd  ≢  3
$(1,1),(1,2),(2,1)$  ≢  (1,1),(1,2)
all even positive integers  ≡  \text{all even positive integers}
all even positive integers  ≢  \text{all odd positive integers}
$P(x)=x^{2}+1$ and $P(x)=-x$  ≡  P(x)=-x, P(x)=x^2+1
$(2,3),(-1,0)$  ≡  (x,y) = (2,3), (-1,0)
$(2,3),(-1,0)$  ≡  (2,3) \text{ or } (-1,0)
$(2,3),(-1,0)$  ≢  (3,2),(0,-1)
$p=3, q=7$  ≢  p=7, q=3
$n=1$ or $n=4$  ≡  1, 4
$n=1$ or $n=4$  ≢  n=1
$a=-3,-\frac{1}{4}$  ≡  -\frac14, -3
$\lfloor n/2 \rfloor$  ≢  n/2
$\frac{n!}{2}$  ≡  \frac12 n!
$\frac{n!}{2}$  ≢  \left(\frac{n}{2}\right)!
$90^\circ$  ≡  90
$60^\circ, 60^\circ, 60^\circ$  ≢  60^\circ
$\angle A = 30^\circ$  ≡  30^\circ
$\cot \alpha$  ≡  \frac{\cos\alpha}{\sin\alpha}
$\cot \alpha$  ≡  \frac{1}{\tan \alpha}
$\cot \alpha$  ≢  \tan \alpha
$e^{\pi}$  ≢  \pi^e
$\frac{3}{4} \pi$  ≡  \frac{3\pi}{4}
$3 \pi / 4$  ≡  \frac{3\pi}{4}
3 \pi / 4  ≢  \frac{4\pi}{3}
1.41e6  ≡  1.41 \times 10^{6} \text{ J}
1.41e6  ≢  1.41 \times 10^{5}
-1.0e-3  ≡  -0.001
\arcsin{1.3/c}  ≡  \arcsin\left(\frac{1.3}{c}\right)
\frac{2 U_{0}}{Q_{0}} \sin(\omega t)  ≢  \frac{2U_0}{Q_0}\cos(\omega t)
m v^2/r  ≡  \frac{mv^2}{r}
\sqrt{\frac{2 g h}{1+I/(mr^2)}}  ≡  \sqrt{\frac{2gh m r^2}{m r^2 + I}}
\sqrt{\frac{2 g h}{1+I/(mr^2)}}  ≢  \sqrt{\frac{2gh m r^2}{m r^2 - I}}
y(t)=t e^{-t}  ≡  te^{-t}
y(t)=t e^{-t}  ≢  te^{t}
\frac{1}{s^2+2s+2}  ≡  \frac{1}{(s+1)^2+1}
\frac{1}{s^2+2s+2}  ≢  \frac{1}{(s+1)^2-1}
2.45e6  ≡  2.45\times 10^6
4.5e33  ≢  4.5e32
x^4  ≡  x\cdot x^3
\ln 3-1  ≡  -1+\ln 3
\ln 3-1  ≢  \ln(3-1)
\frac{x}{2}+C  ≡  \frac12 x + C
\frac{\sin^2 x}{2}+C  ≡  -\frac{\cos^2 x}{2}+C
\frac{\sin^2 x}{2}+C  ≢  \frac{\cos^2 x}{2}+C
\frac{1}{2}\ln|x^2+1|+C  ≡  \frac12 \ln(x^2+1)+C
c_1 e^{x}+c_2 e^{-x}  ≡  C_1e^x+C_2e^{-x}
c_1 e^{x}+c_2 e^{-x}  ≡  A e^{x}+Be^{-x}
c_1 e^{x}+c_2 e^{-x}  ≢  c_1 e^{x}+c_2 e^{x}
y=c_1\cos 2x+c_2\sin 2x  ≡  y = C_2 \sin 2x + C_1\cos 2x
y=Ce^{2x}  ≡  y = ce^{2x}
y=Ce^{2x}  ≢  y = ce^{3x}
\left\langle 1,-2,3\right\rangle  ≡  (1,-2,3)
\langle 1,2 \rangle  ≡  \begin{pmatrix}1\\2\end{pmatrix}
2\mathbf{i}-3\mathbf{j}  ≡  -3\mathbf{j}+2\mathbf{i}
2\mathbf{i}-3\mathbf{j}  ≢  2\mathbf{i}+3\mathbf{j}
2\mathbf{i}-3\mathbf{j}  ≡  2\hat{i}-3\hat{j}
2\mathbf{i}-3\mathbf{j}  ≡  \langle 2,-3\rangle
x \in (-\infty, 2) \cup (3, \infty)  ≡  x<2 \text{ or } x>3
x \in (-\infty, 2) \cup (3, \infty)  ≡  \{x \in \mathbb{R} \mid x<2 \text{ or } x>3\}
x \in (-\infty, 2) \cup (3, \infty)  ≢  2<x<3
x \geq 1, x \neq 2  ≡  [1,2)\cup(2,\infty)
[1,2) \cup (2,\infty)  ≡  x \ge 1 \text{ and } x \ne 2
[1,2) \cup (2,\infty)  ≢  x \ge 1
(0,+\infty)  ≡  x>0
(0,+\infty)  ≢  x\ge0
\{(x,y) \mid x+y=1\}  ≢  \{(x,y) \mid x-y=1\}
\{(x,y) \mid x+y=1\}  ≡  \{(x,y) : x + y = 1\}
\{x \mid x \ne 0\}  ≡  (-\infty,0)\cup(0,\infty)
\{0\}  ≡  0
\{-1\} \cup [2,3]  ≡  x=-1 \text{ or } 2\le x\le 3
A \cup B  ≢  A \cap B
A \cup B  ≡  B \cup A
2 < a \leqslant 3  ≡  (2,3]
m<1  ≡  m \in (-\infty, 1)
\frac{\sqrt{3}}{2}  ≢  \frac{\sqrt{3}}{3}
①③  ≡  ①, ③
①③  ≡  \text{①③}
①③  ≢  ①②
①③  ≢  ①
4\sqrt{5}+5  ≡  5+4\sqrt5
\frac{x^{2}}{9}+\frac{y^{2}}{5}=1  ≡  5x^2+9y^2=45
\frac{x^{2}}{9}+\frac{y^{2}}{5}=1  ≢  \frac{x^{2}}{5}+\frac{y^{2}}{9}=1
3x-4y+5=0 \text{ or } x=1  ≡  x=1 \text{ or } 3x-4y+5=0
3x-4y+5=0 \text{ or } x=1  ≢  3x-4y+5=0
a_n=2n-1  ≡  2n-1
a_n=2n-1  ≡  a_{n}=1+2(n-1)
a_n=2n-1  ≢  a_n=2n+1
a_n = \begin{cases} 1, & n=1 \\ 2n, & n \ge 2 \end{cases}  ≡  \begin{cases} 1 & n=1 \\ 2n & n\geq 2\end{cases}
a_n = \begin{cases} 1, & n=1 \\ 2n, & n \ge 2 \end{cases}  ≢  a_n=2n
0.5 \text{ or } 2  ≡  \frac12, 2
-12 \text{ or } -30  ≡  -30, -12
-12 \text{ or } -30  ≢  -12
\frac{1}{6} \text{ or } \frac{5}{6}  ≢  \frac16
10 \text{ cm}^3  ≡  10 \text{ cubic centimeters}
10 \text{ cm}^3  ≡  10\ cm^3
10 \text{ cm}^3  ≢  10 \text{ cm}^2
1000 \text{ cm}^3  ≡  1 \text{ liter}
5 \text{ km/h}  ≡  5 \text{ kilometers per hour}
5 \text{ km/h}  ≡  5\,\frac{\text{km}}{\text{h}}
5 \text{ km/h}  ≡  5 \text{ km h}^{-1}
300 \text{ K}  ≢  300 \text{ kg}
6.63\times 10^{-34}\text{ J s}  ≡  6.63e-34
6.63\times 10^{-34}\text{ J s}  ≡  6.63 \times 10^{-34}\ \mathrm{J\cdot s}
6.63\times 10^{-34}\text{ J s}  ≢  6.63\times 10^{-34}\text{ J}
1.6 \times 10^{-19} \mathrm{C}  ≡  1.6 \times 10^{-19} \text{ coulombs}
5 \Omega  ≡  5 \text{ ohms}
5 \text{ k}\Omega  ≢  5\ \Omega
12 \mu\text{m}  ≢  12 \text{ m}
12 \mu\text{m}  ≡  12 \times 10^{-6}\text{ m}
3\text{ hr }20\text{ min}  ≡  200\text{ minutes}
1\text{ hour and }15\text{ minutes}  ≡  75 \text{ min}
1\text{ hour and }15\text{ minutes}  ≢  1\text{ hour}
2\text{ lb }4\text{ oz}  ≡  36 \text{ oz}
\text{2 hours}  ≡  120 \text{ minutes}
\$1{,}250.50  ≡  1250.5
\$1{,}250.50  ≡  \$1,250.50
25 \text{ cents}  ≡  \$0.25
25 \text{ cents}  ≢  \$25
€ 40  ≡  40 \text{ euros}
€ 40  ≢  \$40
45\%  ≡  \frac{9}{20}
45\%  ≢  4.5\%
33\frac{1}{3}\%  ≡  \frac13
8 \text{ students}  ≢  8 \text{ teachers}
1:2  ≡  \frac{1}{2}
3 : 4 : 5  ≡  3:4:5
3 : 4 : 5  ≢  3:5:4
7:30 \text{ AM}  ≡  7:30 \text{ a.m.}
7:30 \text{ AM}  ≡  07:30
7:30 \text{ AM}  ≢  7:30 \text{ PM}
19:30  ≡  7:30 \text{ PM}
12  ≡  \text{The answer is 12.}
12  ≡  x = 12 \text{ cm}
12  ≡  \text{Area} = 12
12  ≡  12 = 3 \times 4
12  ≡  \frac{24}{2} = 12
12  ≢  \frac{24}{3} = 12
12  ≢  12 \Rightarrow 13
12  ≢  \{12, \ldots\}
12  ≢  12, \ldots
12  ≢  \mathbb{Z}_{12}
12  ≢  [12, \infty)
12  ≢  x \le 12
12  ≢  12 \text{ or more}
12  ≢  \text{approximately } 13
12  ≢  12 \oplus 1
12  ≢  12 + o(1)
12  ≢  12^{*}
12  ≢  \overline{12}
12  ≢  1\cdot 2
12  ≢  12i
12  ≢  12 \text{ mod } 5
12  ≢  \max(12, 13)
12  ≡  \max(12, 11)
12  ≢  12 \in \mathbb{N}
12  ≢  12 \cup 13
12  ≢  \text{twelve or thirteen}
12  ≡  \text{twelve}
12  ≢  \text{a dozen or so}
12  ≢  12 \text{ (not } 13)
12  ≢  |12|+|x|
\frac{1}{3}  ≢  0.333
\frac{1}{3}  ≢  .33\overline{4}
x  ≢  |x|
x^2  ≢  x|x|
\text{True}  ≢  \text{False}
\text{Yes}  ≢  \text{yes or no}
\text{both}  ≢  \text{neither}
\text{Alice}  ≢  \text{Alice and Bob}
\text{Alice and Bob}  ≡  \text{Bob and Alice}
\text{red, blue}  ≡  \text{blue, red}
\text{A}  ≢  \text{B}
AD  ≢  AC
AD  ≡  \text{AD}
\triangle ABC  ≢  \triangle ABD
\text{Thursday}  ≡  \text{on Thursday}
\text{parallelogram}  ≡  \text{a parallelogram}
1,3,5,7,\dots  ≢  2,4,6,8,\dots
1,3,5,7,\dots  ≡  1,3,5,7,\ldots
n^2+n+41  ≢  n^2-n+41
k\pi, k\in\mathbb{Z}  ≡  n\pi \text{ where } n \text{ is an integer}
k\pi, k\in\mathbb{Z}  ≡  x = k\pi \ (k \in \mathbb{Z})
k\pi, k\in\mathbb{Z}  ≢  \frac{k\pi}{2}, k\in\mathbb{Z}
n \equiv 3 \pmod{6}  ≡  n = 6k+3
n \equiv 3 \pmod{6}  ≡  n=6k+3, k \in \mathbb{Z}
n \equiv 0 \pmod 3  ≢  n \equiv 0 \pmod 4
n \equiv 1, 4 \pmod 5  ≢  n \equiv 1 \pmod 5
n \equiv 1, 4 \pmod 5  ≡  n \equiv 4, 1 \pmod 5
\gcd(a,b)=1  ≢  \gcd(a,b)=2
x \perp y  ≢  x \parallel y
f(x)=kx, k \in \mathbb{R}  ≡  f(x)=cx \text{ where } c \text{ is any real constant}
f(x)=ax+b  ≢  f(x)=ax
f(x)=0, f(x)=x  ≢  f(x)=0
f(x) = x+c \text{ for any constant } c  ≢  f(x)=x
\int_0^1 x^2 dx  ≡  \frac13
\sum_{k=1}^{n} k^2  ≡  \frac{n(n+1)(2n+1)}{6}
\sum_{k=1}^{n} k^2  ≢  \frac{n(n+1)}{2}
\lim_{x \to 0} \frac{\sin x}{x}  ≡  1
\prod_{k=1}^{5} k  ≡  120
x^{1/3}  ≡  \sqrt[3]{x}
(2x+1)(x-3)  ≢  (2x-1)(x+3)
\frac{d^2y}{dx^2}  ≢  \frac{dy}{dx}
\nabla \cdot E = 0  ≢  \nabla \times E = 0
\vec{v}=(1,2)  ≡  (1,2)
|\vec{a}|=3  ≡  3
P(A \cap B)=0.2  ≡  0.2
P(A \cap B)=0.2  ≢  P(A \cup B)=0.2
z=2+3i  ≡  2+3i
z=2+3i  ≢  2-3i
\bar{z}=2+3i  ≢  z=2+3i
r=2\cos\theta  ≡  r = 2 \cos(\theta)
r=2\cos\theta  ≢  r = 2\sin\theta
(r,\theta)=(2,\frac{\pi}{3})  ≡  (2, \pi/3)
x=t+1, y=2t  ≡  y=2t, x=1+t
x=t+1, y=2t  ≢  x=t+1, y=3t
\frac{1}{4\pi\epsilon_0}\frac{q}{r^2}  ≡  \frac{q}{4 \pi \varepsilon_0 r^2}
\frac{1}{4\pi\epsilon_0}\frac{q}{r^2}  ≢  \frac{q}{4 \pi \varepsilon_0 r}
\hbar\omega/2  ≡  \frac{1}{2}\hbar \omega
m_e c^2  ≢  m_p c^2
k_B T \ln 2  ≡  k_{B}T\ln(2)
V_0 e^{-t/RC}  ≡  V_0 e^{-\frac{t}{RC}}
V_0 e^{-t/RC}  ≢  V_0 e^{-tRC}
-i\hbar \frac{\partial}{\partial x}  ≢  i\hbar \frac{\partial}{\partial x}
3.00 \times 10^{8} \mathrm{~m} \mathrm{~s}^{-1}  ≡  3 \times 10^8 \text{ m/s}
4.2 \mathrm{~kJ}  ≡  4200 \text{ J}
4.2 \mathrm{~kJ}  ≢  4.2 \text{ kJ/mol}
0.50 \mathrm{M}  ≢  0.50 \text{ mM}
1.5 \mathrm{~mol} / \mathrm{L}  ≡  1.5 \text{ mol/L}
37^\circ\text{C}  ≢  37\text{ K}
y=\frac{C}{x}  ≡  y = \frac{C_1}{x}
y=\frac{C}{x}  ≢  y=\frac{C}{x^2}
x^2+y^2=C  ≢  x^2-y^2=C
y(x) = \sin x  ≡  y = \sin x
\frac{dy}{dx} = 2x  ≡  2x
u(x,t) = e^{-t}\sin x  ≡  e^{-t} \sin x
u(x,t) = e^{-t}\sin x  ≢  e^{-t}\cos x
\left[\begin{array}{rr}1 & 2 \\ 3 & 4\end{array}\right]  ≡  \begin{bmatrix}1&2\\3&4\end{bmatrix}
\left[\begin{array}{rr}1 & 2 \\ 3 & 4\end{array}\right]  ≢  \begin{bmatrix}1&3\\2&4\end{bmatrix}
\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}  ≡  -2
A^{-1} = \begin{pmatrix} 1 & 0 \\ 0 & 2\end{pmatrix}  ≡  \begin{pmatrix} 1 & 0 \\ 0 & 2\end{pmatrix}
A^{-1}  ≢  A
A^T  ≢  A
\lambda = 1, 2, 3  ≡  \lambda_1 = 1, \lambda_2 = 2, \lambda_3 = 3
\lambda=2,5  ≡  2, 5
(x-2)^2 + y^2 \le 4  ≢  (x-2)^2+y^2 \ge 4
0 \le \theta \le 2\pi  ≢  0 \le \theta < 2\pi
x \in [0, 2\pi)  ≡  0 \le x < 2\pi
x=\frac{\pi}{6}, \frac{5\pi}{6}  ≡  \frac{5\pi}{6}, \frac{\pi}{6}
x=\frac{\pi}{6}, \frac{5\pi}{6}  ≢  \frac{\pi}{6}, \frac{7\pi}{6}
x=2k\pi \pm \frac{\pi}{3}, k \in \mathbb{Z}  ≡  x = \pm\frac{\pi}{3}+2n\pi, n \in \mathbb{Z}
x=2k\pi \pm \frac{\pi}{3}, k \in \mathbb{Z}  ≢  x = \frac{\pi}{3}+2n\pi, n \in \mathbb{Z}
\left[ k\pi, k\pi+\frac{\pi}{2} \right], k\in\mathbb{Z}  ≡  [n\pi, n\pi+\frac{\pi}{2}] (n \in \mathbb{Z})
\left[ k\pi, k\pi+\frac{\pi}{2} \right], k\in\mathbb{Z}  ≢  (k\pi, k\pi+\frac{\pi}{2}), k\in\mathbb{Z}
\{ -1, 0, 1 \}  ≡  \{-1,0,+1\}
\{a, b\}  ≡  \{b, a\}
\{x \in \mathbb{Z} \mid -2 < x < 3\}  ≢  (-2,3)
\mathbb{N}  ≢  \mathbb{Z}
(2, +\infty)  ≡  (2, \infty)
(-1, 3]  ≢  (-1, 3)
(-\infty, -1) \cup (5, +\infty)  ≡  x<-1 \text{ or } x>5
(-\infty, -1) \cup (5, +\infty)  ≡  \{x|x<-1 或 x>5\}
a \geqslant 2  ≡  [2,+\infty)
a \geqslant 2  ≡  a\ge2
1 < m \leq \frac{3}{2}  ≡  (1, 1.5]
-3 \text{ or } 1  ≡  1 \text{ or } -3
2 \text{ and } -2  ≡  \pm 2
2 \sqrt{3} \mathrm{cm}  ≡  2\sqrt3
2 \sqrt{3} \mathrm{cm}  ≡  2\sqrt3 \text{ cm}
2 \sqrt{3} \mathrm{cm}  ≢  2\sqrt3 \text{ m}
10 \%  ≡  0.1
\text{Rs. } 500  ≡  500
500 \text{ rupees}  ≡  500
15 \text{ years old}  ≡  15
15 \text{ years}  ≡  15
15 \text{ years}  ≢  15 \text{ months}
2 \text{ years}  ≡  24 \text{ months}
5:3  ≡  \frac{5}{3}
5 \text{ to } 3  ≡  5:3
1/2  ≡  0.5
1/2  ≢  1/3
50  ≡  50.00
1{,}000  ≡  1000
10^{3}  ≡  1{,}000
3.14159  ≢  3.14
2.71828  ≢  2.7
-\infty  ≢  \infty
x \to 3  ≢  3
f^{-1}(x) = \frac{x-1}{2}  ≡  \frac{x-1}{2}
f^{-1}(x) = \frac{x-1}{2}  ≢  f(x) = \frac{x-1}{2}
f'(x) = 2x  ≡  2x
f'(x) = 2x  ≢  f(x)=2x
f(3) = 10  ≡  10
g \circ f  ≢  f \circ g
\log_3 x  ≡  \frac{\ln x}{\ln 3}
\lg 2  ≡  \log_{10} 2
\lg 2  ≢  \ln 2
\log 100  ≡  2
e^{\ln 5}  ≡  5
|x|+|y|=1  ≢  |x|-|y|=1
\sqrt{x^2}  ≡  |x|
\sqrt{x^2}  ≢  x
\frac{x^2-4}{x-2}  ≡  x+2
3x^2y - 2xy^2  ≡  xy(3x-2y)
3x^2y - 2xy^2  ≢  xy(2x-3y)
n(n-1)(n-2)/6  ≡  \binom{n}{3}
(n+1)!  ≡  (n+1) n!
(n+1)!  ≢  n!+1
2^n n!  ≡  n! \cdot 2^{n}
\frac{(2n)!}{n!}  ≢  2
A_5^2  ≡  20
{}_{10}C_{3}  ≡  120
\sum_{i=1}^{n} i  ≡  \frac{n(n+1)}{2}
\sum_{n=1}^{\infty} \frac{1}{n^2}  ≡  \frac{\pi^2}{6}
\int x dx  ≢  \int y dy
\infty  ≡  \text{infinity}
\text{does not exist}  ≡  \text{DNE}
\text{does not exist}  ≢  \text{exists}
\text{No}  ≡  \text{no.}
\text{No}  ≢  \text{none of the above}
\text{none of the above}  ≢  \text{all of the above}
D  ≡  \text{D}
D  ≡  \mathbf{(D)}
D  ≡  \text{Option D}
ACD  ≡  A, C, D
ACD  ≢  ABD
A, C  ≡  AC
2024\text{-}05\text{-}01  ≢  2024\text{-}05\text{-}02
\text{May 1, 2024}  ≡  1 \text{ May } 2024
12:30 \text{ a.m.}  ≡  0:30
\text{noon}  ≢  \text{midnight}
7  ≢  7 \text{ or less}
7  ≢  \text{no more than } 7
7  ≢  7 \leftrightarrow 8
7  ≢  7 \land 8
7  ≢  \frac{7}{x-x}
7  ≢  7 + \infty - \infty
7  ≢  \begin{pmatrix} 7 \end{pmatrix} \text{ or } 8
7  ≢  7 \% 8
7  ≢  7 \equiv 0
7  ≢  7 \equiv 2 \pmod 5
7  ≢  \text{not 8 but 7, no, 9}
7  ≢  x = 7 \text{ or } x = 8
7  ≢  x=7, x=8
7  ≢  7_8
7  ≢  0.7 \times 10^{2}
7  ≢  7\,000
7  ≢  7.7
7  ≢  -(-(-7))
7  ≡  -(-7)
7  ≡  \lceil 6.2 \rceil
7  ≡  \lfloor 7.9 \rfloor
7  ≡  |{-7}|
7  ≡  7^1
7  ≡  7\cdot1
7  ≡  \sqrt{49}
7  ≡  \text{seven}
7  ≡  7 \text{ units}
7  ≡  \$7
7  ≡  x=7
7  ≡  n = 7
7  ≡  \text{Total} = 7
7  ≡  7\phantom{0}
7  ≡  \textcolor{blue}{7}
7  ≡  \mathrm{7}
7  ≡  +7
7  ≡  7,
7  ≡  ７
17  ≢  17.000001
0.1  ≢  0.01
x+y  ≡  y+x
x+y  ≢  xy
2x  ≢  x^2
(a,b)  ≢  (b,a)
\frac{1}{x}  ≢  x
5 \text{ mA}  ≢  5 \text{ MA}
3 \text{ g}  ≢  3 \text{ kg}
100 \text{ m}  ≢  100 \text{ miles}
2 \text{ h}  ≡  120 \text{ min}
x^2=9  ≢  x=3
x=\pm 3  ≡  x=3 \text{ or } x=-3
a>b  ≢  a<b
a>b  ≡  b<a
\sin x = \frac12  ≢  \cos x = \frac12
p \implies q  ≢  q \implies p
1 \le n \le 10  ≢  1 < n < 10
f(x) > 0  ≢  f(x) < 0
x^2 + C  ≢  x^2 + D x
5 \text{ ways}  ≢  6 \text{ ways}
\text{at most } 5  ≢  \text{at least } 5
\text{at least } 5  ≢  5
5 \text{ or } 7  ≢  5 \text{ or } 8
(1,2]  ≢  [1,2)
\{(1,2)\}  ≡  (1,2)
\{(1,2)\}  ≢  (2,1)
\sqrt{-1}  ≡  i
(-8)^{1/3}  ≢  2
\frac{2}{0}  ≢  \infty
# a fresh lot
150 \text{ cm}^2  ≡  0.015\ \mathrm{m}^2
72 \text{ km/h}  ≢  20 \text{ km/h}
3 \text{ hours}  ≡  180 \text{ min}
2.5 \text{ liters}  ≡  2500 \text{ mL}
500 \text{ g}  ≢  5\,\text{kg}
12 \text{ square feet}  ≢  12\text{ ft}^3
6\pi \text{ cm}  ≢  6
100 \text{ mph}  ≡  100\text{ miles per hour}
24 \text{ inches}  ≢  2 \text{ inches}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}  ≢  \begin{bmatrix} 1 & 3 \\ 2 & 4 \end{bmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}  ≡  [[1, 2], [3, 4]]
x \equiv 3 \pmod 7  ≡  x \equiv 10 \pmod{7}
x \equiv 3 \pmod 7  ≡  x = 7k + 3, k \in \mathbb{Z}
f(x) = 2x + 1  ≡  f(t) = 2t+1
x^2 + C  ≡  x^2 + K
|x|  ≡  \sqrt{x^2}
f(x) = \begin{cases} x & x \ge 0 \\ -x & x < 0 \end{cases}  ≢  \begin{cases} -x, & x>0 \\ x, & x \leq 0 \end{cases}
\text{July 4, 1776}  ≡  4 July 1776
\text{Tuesday}  ≡  Tuesday
2 \text{ hours } 30 \text{ minutes}  ≡  2.5 \text{ hours}
0.\overline{3}  ≡  \frac13
0.1\overline{6}  ≡  \frac{1}{6}
0.\overline{9}  ≡  1
\{x \mid x^2 = 4\}  ≡  \{-2, 2\}
\{x \mid x^2 = 4\}  ≢  \{2\}
\{x \in \mathbb{Z} \mid 1 \le x \le 4\}  ≡  \{1, 2, 3, 4\}
\{x \in \mathbb{Z} \mid 1 \le x \le 4\}  ≢  [1, 4]
\{2, 3, 5\}  ≡  \{5, 3, 2\}
\{2, 3, 5\}  ≢  \{2, 3\}
75^\circ, 75^\circ, 30^\circ  ≢  75^\circ, 30^\circ
75^\circ, 75^\circ, 30^\circ  ≡  30, 75, 75
75^\circ, 75^\circ  ≢  75^\circ
1, 1, 2  ≢  1, 2
x = 1, 1, 2  ≡  1, 1, 2
1, 2  ≡  x = 1 \text{ or } x = 2
12 \text{ apples}  ≢  12 \text{ oranges}
\boxed{5}  ≡  5
\mathbf{42}  ≡  42
\dfrac{7}{8}  ≡  \tfrac78
2^{10}  ≡  1024
n(n+1)/2  ≡  \frac{n^2+n}{2}
\sum_{k=1}^{n} k  ≡  \frac{n(n+1)}{2}
\tan x  ≡  \frac{\sin x}{\cos x}
(x-1)(x+2)  ≢  x^2 - x - 2
5  ≢  5 \text{ or more}
17_{8}  ≡  17_8
1011_2  ≡  1011_{\text{two}}
1, 3, 5, \ldots, 99  ≢  1, 3, 5, \dots, 97
\binom{10}{3}  ≡  C(10,3)
\binom{10}{3}  ≢  C(10,4)
3.5  ≡  3{,}5
3.5  ≢  3{,}6
2500  ≡  2{,}500
3, 5  ≢  3{,}5
\{x \in \mathbb{R} \mid x^3 = x\}  ≡  \{-1, 0, 1\}
\{x \in \mathbb{R} \mid x^3 = x\}  ≢  \{0, 1\}
\{x \mid x^2 - 2 = 0\}  ≡  \{\sqrt2, -\sqrt2\}
\{x \mid x^2 + 1 = 0\}  ≡  \emptyset
\{x \mid x^2 + 1 = 0\}  ≢  \{0\}
\{x \mid (x-1)^2 = 0\}  ≡  \{1\}
f(x) = x + t  ≢  f(t) = t + t
"""

COMPLETIONS = r"""
# extraction
12  ≡  The total is 5 + 7 = 12.
12  ≡  He needs 12 boxes.
12  ≡  #### 12
12  ≡  A: 12
12  ≡  Therefore:⏎⏎**Answer: 12**
12  ≡  **Final Answer**⏎⏎12
12  ≡  The final answer is: $\boxed{12}$.
12  ≡  <answer>12</answer>
12  ≡  <answer> $12$ </answer> Done.
12  ≡  So we get \( 12 \).
12  ≡  The answer is \[12\]
12  ≡  Step 1: 3 boxes.⏎Step 2: 4 each.⏎The answer is 12 boxes.
12  ≡  \boxed{12} \text{ cm}
12  ≢  \boxed{12} or 13
12  ≢  \boxed{12} or \boxed{13}
12  ≢  \boxed{12}, \boxed{13}
12  ≢  The answer is 12 or 13.
12  ≢  The answer is $12$ or $13$.
12  ≢  The answer is either 12 or 13.
12  ≢  The answer is not 12.
12  ≢  It is not 12.
12  ≢  Final answer: 12, 13
12  ≢  \boxed{13}. Earlier I thought 12.
12  ≢  The answer is between 12 and 13.
12  ≢  Answer: about 13, maybe 12
12  ≢  \boxed{12
12  ≢  <answer>12 or 13</answer>
12  ≢  There are 12 boys and 13 girls.
12, 13  ≡  \boxed{12} and \boxed{13}
12, 13  ≡  The answers are $12$ and $13$.
12, 13  ≡  Final Answer: 12 and 13
(1,2)  ≡  The final answer is $(1,2)$.
x=2  ≡  Thus $x = 2$.
\frac{1}{2}  ≡  The probability is $\frac{1}{2}$.
\frac{1}{2}  ≡  The answer is 1/2 because the coin is fair.
\$18  ≡  She makes $18 every day.
18  ≡  She makes 9 * 2 = $18 every day at the market.
18  ≢  She makes $9 * 2 = $18 every day, or $126 a week.
45  ≡  3 * 15 = 45⏎A: 45
45  ≡  The result is 45⏎#### 45
45  ≢  #### 54
1200  ≡  The total cost is $1,200.
1200  ≡  It costs **$1,200** in total.
70  ≡  So 70 percent of them passed.
\text{Paris}  ≡  The answer is Paris.
B  ≡  The correct answer is (B).
B  ≡  Answer: B
B  ≢  Answer: A or B
2.5  ≡  It takes 2.5 hours.
2 \text{ hours } 30 \text{ minutes}  ≡  It takes 2 hours 30 minutes.
2 \text{ hours } 30 \text{ minutes}  ≢  It takes 2 hours 20 minutes.
# sentences
5  ≡  We compute 2+3.⏎⏎So the answer is **5**.
5  ≡  The answer is: 5
5  ≡  **Answer:** $5$
5  ≡  **Answer**: \boxed{5}
5  ≡  ### Answer⏎5
5  ≡  ## Final Answer⏎⏎$$5$$
5  ≡  Final Answer: The final answer is $5$. I hope it is correct.
5  ≡  Therefore, the answer is $\boxed{5}$. This is because 2+3 = 5 and not 6.
5  ≡  $\boxed{5}$ or equivalently $\boxed{5}$
5  ≡  The answer is (5).
5  ≡  The answer is five.
5  ≡  so x = 5
5  ≡  = 5
5  ≡  Thus $x = 2 + 3 = 5$.
5  ≡  \[ x = \boxed{5} \]
5  ≡  \boxed{x = 5}
5  ≡  $$\boxed{5}$$ apples
5  ≡  The number of apples is 5.
5  ≡  Tom has 5 apples left.
5  ≡  Tom has a total of 5 apples.
5  ≡  There were 5 of them.
5  ≡  Answer = 5
5  ≡  Ans: 5
5  ≡  <answer>\boxed{5}</answer>
5  ≡  <answer>The answer is 5</answer>
5  ≡  <answer>x = 5</answer>
5  ≡  ANSWER: 5
5  ≡  The correct answer is 5.
5  ≡  The final result is 5.
5  ≡  Hence we conclude that the value is $5$.
5  ≡  5.
5  ≡  "5"
5  ≡  `5`
5  ≡  5 (five)
5  ≢  The answer is 5 or maybe 6.
5  ≢  The answer is 6, not 5.
5  ≢  The answer is 5? No, 6.
5  ≢  I think 5 or 6.
5  ≢  5 or 6
5  ≢  5, 6
5  ≢  $5$, $6$
5  ≢  Either 5 or 6
5  ≢  \boxed{5} \boxed{6}
5  ≢  \boxed{6} \boxed{5} or \boxed{6}
5  ≢  $\boxed{5}$ or $6$
5  ≢  \boxed{5}, or maybe 6
5  ≢  Answer: 5⏎Answer: 6
5  ≢  The answer is 5.⏎Actually, the answer is 6.
5  ≢  #### 5⏎#### 6
5  ≢  <answer>5</answer><answer>6</answer>
5  ≢  The answer is less than 5.
5  ≢  The answer is at least 5
5  ≢  The answer is greater than or equal to 5
5  ≢  x is not equal to 5
5  ≢  x ≠ 5
5  ≢  x > 5
5  ≢  It could be 5.1
5  ≢  5th, 6th
5  ≢  The answer is 5 and 6
5  ≢  The answer lies in [4, 5]
5  ≢  The answer is the number before 5
5  ≢  The answer is -5
5  ≢  The answer is 5 × 10
5  ≢  The answer is 5/0
5  ≢  The answer is 5^2
5  ≢  The answer is √5
5  ≢  The answer is 5x
5  ≢  The answer is 5 million
5  ≢  The answer is 5 minus 1
5  ≢  The answer is 5 percent of 10
5  ≢  The answer is unknown (maybe 5)
5  ≢  We do not know. 5?
5  ≢  \boxed{\text{Either } 5 \text{ or } 6}
5  ≢  \boxed{5?6}
5  ≢  \boxed{5} is wrong; the answer is 6
\frac{3}{4}  ≡  The probability is 3/4.
\frac{3}{4}  ≡  The probability is $\dfrac{3}{4}$, or 0.75.
\frac{3}{4}  ≡  The answer is 3/4 = 0.75
\frac{3}{4}  ≡  The answer is 0.75 (or 3/4).
\frac{3}{4}  ≡  The answer is $\frac{3}{4}$ or $0.75$.
\frac{3}{4}  ≡  P = 75%
-2  ≡  The answer is −2.
-2  ≡  The minimum value is -2.
1,2  ≡  x = 1 or x = 2
1,2  ≡  The solutions are $x=1$ and $x=2$.
1,2  ≡  The solutions are x = 1 and x = 2.
1,2  ≡  Answer: {1, 2}
1,2  ≢  The solutions are x = 1 and x = 3.
1,2  ≢  The solutions are x = 1.
(3,4)  ≡  The point is (3, 4).
(3,4)  ≡  The answer is $(3,4)$.
(3,4)  ≢  The answer is (4,3).
x^2+1  ≡  The answer is x^2 + 1.
x^2+1  ≡  So f(x) = x^2+1.
x^2+1  ≡  Thus $f(x) = x^2+1$ for all real $x$.
x^2+1  ≢  The answer is x^2 - 1.
\sqrt{2}  ≡  The length is √2.
\sqrt{2}  ≡  The length is \sqrt{2}.
\sqrt{2}  ≡  The length is sqrt(2).
2\pi  ≡  The area is 2π.
2\pi  ≡  The area is $2\pi$ square units.
[0,1]  ≡  The range is [0, 1].
\text{Tuesday}  ≡  The day is Tuesday.
\text{Tuesday}  ≡  The answer is Tuesday.
\text{Tuesday}  ≡  It will be a Tuesday.
\text{Tuesday}  ≢  It is Wednesday.
\text{Yes}  ≡  Yes
\text{Yes}  ≡  The answer is yes, because 2 is prime.
\text{Yes}  ≢  The answer is no, not yes.
C  ≡  The answer is C.
C  ≡  The answer is (C) 12.
C  ≡  Answer: C) 12
C  ≡  **C**
C  ≡  The correct option is C.
C  ≢  The answer is (B) or (C).
C  ≢  A, B, C, D
2:30 \text{ p.m.}  ≡  The train arrives at 2:30 p.m.
2:30 \text{ p.m.}  ≡  The train arrives at 2:30 PM.
2:30 \text{ p.m.}  ≢  The train arrives at 2:30 a.m.
\$12.50  ≡  It costs $12.50.
\$12.50  ≡  The total is $12.50 per person.
1250  ≡  The total is 1,250 dollars.
1250  ≡  The total is $1,250.00
1250  ≡  #### $1,250
1250  ≡  A: $1,250
1250  ≡  A: 1250 dollars
1250  ≡  So they earned 500 + 750 = 1250 dollars.
1250  ≡  500+750=<<500+750=1250>>1250⏎#### 1250
1250  ≡  So 500+750=<<500+750=1250>>1250 dollars
36  ≡  Tim walks 3 miles each day for 12 days, so 3*12 = 36 miles in total.
36  ≡  In 3 days he reads 36 pages.
36  ≢  He reads 36 pages in 3 days and 40 pages in 4 days.
3 \text{ hours}  ≡  It takes 3 hours.
3 \text{ hours}  ≡  It takes 180 minutes.
3 \text{ hours}  ≢  It takes 3 minutes.
25  ≡  25%
25  ≡  The percentage is 25%.
(2,3)  ≡  \boxed{x=2}, \boxed{y=3}
3.5  ≡  Die Antwort ist $3{,}5$.
"""


def pairs() -> list[tuple[str, str, str, bool]]:
    """(kind, gold answer, completion, right) of every judged pair."""
    found, kind = [], ""
    for source, boxed in ((JUDGED, True), (COMPLETIONS, False)):
        for line in source.strip().split("\n"):
            if line.startswith("# "):
                kind = line[2:]
                continue
            right = "  ≡  " in line
            gold, _, answer = line.partition("  ≡  " if right else "  ≢  ")
            text = f"Therefore the answer is $\\boxed{{{answer}}}$." if boxed else answer.replace("⏎", "\n")
            found.append((kind, gold, text, right))
    return found
