/* Preloaded into a process, shows it another x86-64 processor than the one it runs on: AMD, with AVX2 and without
 * AVX-512 and AMX, with other caches. The arithmetic is this processor's; the choice of kernels is the other's.
 *
 * The instruction CPUID is made to fault (arch_prctl, Intel since Ivy Bridge, AMD since Zen 3), and the handler of the
 * fault answers in its place. The loader of glibc has asked before: GLIBC_TUNABLES says it the same.
 *
 *     gcc -shared -fPIC -O2 -o other.so other_processor.c && LD_PRELOAD=./other.so python ...
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static void answer(unsigned leaf, unsigned sub, unsigned r[4]) {
    __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
    if (leaf == 0 || leaf == 0x80000000u) {
        memcpy(&r[1], "Auth", 4);
        memcpy(&r[3], "enti", 4);
        memcpy(&r[2], "cAMD", 4);
        r[0] = leaf ? 0x8000001eu : 0x10;
    } else if (leaf == 1) {
        r[0] = 0x00830f10; /* Zen 2 */
    } else if (leaf == 4) {
        memset(r, 0, 4 * sizeof *r); /* AMD says its caches elsewhere */
    } else if (leaf == 7 && sub == 0) {
        r[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
        r[2] &= ~(1u << 1 | 1u << 6 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 14);
        r[3] &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (leaf == 7) {
        memset(r, 0, 4 * sizeof *r);
    } else if (leaf == 0x80000005u) {
        r[2] = r[3] = 32u << 24 | 8u << 16 | 1u << 8 | 64; /* 32 KB of the first cache */
    } else if (leaf == 0x80000006u) {
        r[2] = 512u << 16 | 6u << 12 | 1u << 8 | 64; /* 512 KB of the second */
        r[3] = 32u << 18 | 9u << 12 | 1u << 8 | 64;
    } else if (leaf == 0x8000001du) {
        static const unsigned type[] = {1, 2, 3, 3}, size[] = {32, 32, 512, 16384}, ways[] = {8, 8, 8, 16};
        memset(r, 0, 4 * sizeof *r);
        if (sub < 4) {
            r[0] = type[sub] | (sub < 2 ? 1u : sub) << 5;
            r[1] = (ways[sub] - 1) << 22 | 63;
            r[2] = size[sub] * 1024 / 64 / ways[sub] - 1;
        }
    }
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)regs[REG_RIP];
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
        const struct sigaction usual = {.sa_handler = SIG_DFL};
        real_sigaction(number, &usual, NULL); /* a fault of the program's own: it happens again, and ends it */
        return;
    }
    unsigned r[4];
    syscall(SYS_arch_prctl, SET_CPUID, 1);
    answer((unsigned)regs[REG_RAX], (unsigned)regs[REG_RCX], r);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    regs[REG_RAX] = r[0], regs[REG_RBX] = r[1], regs[REG_RCX] = r[2], regs[REG_RDX] = r[3];
    regs[REG_RIP] += 2;
}

int sigaction(int number, const struct sigaction *to, struct sigaction *from) {
    if (!real_sigaction)
        real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    return real_sigaction(number, number == SIGSEGV ? NULL : to, from); /* the handler stays */
}

void (*signal(int number, void (*handler)(int)))(int) {
    struct sigaction to = {.sa_handler = handler, .sa_flags = SA_RESTART}, from = {.sa_handler = SIG_DFL};
    return sigaction(number, &to, &from) ? SIG_ERR : from.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    real_sigaction(SIGSEGV, &mine, NULL);
    if (syscall(SYS_arch_prctl, SET_CPUID, 0)) {
        fputs("this processor or kernel does not let CPUID fault\n", stderr);
        _exit(77);
    }
}
