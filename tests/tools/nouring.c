/* tests/tools/nouring.c - runs a program whose io_uring calls the kernel refuses, as containers do:
 *     nouring PROGRAM [ARGS]
 *
 * Owns: a seccomp filter over the three io_uring calls; $NOURING_ERRNO is what they give (default
 * EPERM, as Docker's profile; ENOSYS as an old kernel). Refuses: anything else. Exit 77 when the
 * kernel takes no filter, 127 when the program cannot be started. Note: their
 * numbers are the same on every architecture (they are younger than the common table). */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXIT_SKIP       77
#define EXIT_NO_PROGRAM 127

_Static_assert(SYS_io_uring_enter == SYS_io_uring_setup + 1 &&
                   SYS_io_uring_register == SYS_io_uring_setup + 2,
               "the filter takes the calls as one range");

int main(int argc, char **argv)
{
    if (argc < 2) {
        fputs("usage: nouring PROGRAM [ARGS]\n", stderr);
        return 2;
    }
    const char *text = getenv("NOURING_ERRNO");
    unsigned refusal = text ? (unsigned)strtoul(text, NULL, 10) & SECCOMP_RET_DATA : EPERM;
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | refusal),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof rules[0], .filter = rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("nouring: seccomp");
        return EXIT_SKIP;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return EXIT_NO_PROGRAM;
}
