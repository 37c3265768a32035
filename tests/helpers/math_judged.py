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
