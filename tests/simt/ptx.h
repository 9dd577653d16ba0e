/* tests/simt/ptx.h - PTX as nvcc wrote it, interpreted by the fibers of the shim.
 *
 * ptx.c owns kernels by name, their launches and what ran of them; ptx_read.c the text;
 * ptx_numbers.c whatever computes; ptx_memory.c whatever touches memory or other lanes. Refuses: an
 * instruction that it does not know to the letter (nothing is passed over), approximations, calls.
 * A thread's registers are slots of 64 bits. Constants and special registers have slots too, so
 * that every operand is one; a slot holds no more bits than its register has. */
#ifndef TESTS_SIMT_PTX_H
#define TESTS_SIMT_PTX_H

#include "tests/simt/impl.h"

/* Slots that every kernel has. To an address of a space that of the space is added. */
enum ptx_slot {
    SLOT_ZERO,
    SLOT_TRUE,
    SLOT_TID, // x, y, z, as the next three
    SLOT_NTID = SLOT_TID + 3,
    SLOT_CTAID = SLOT_NTID + 3,
    SLOT_NCTAID = SLOT_CTAID + 3,
    SLOT_SHARED = SLOT_NCTAID + 3,
    SLOT_LOCAL,
    SLOT_PARAM,
    N_FIXED_SLOTS
};

#define PTX_LIST_MAX    14 // registers of one instruction: an mma has most
#define PTX_LOCAL_BYTES 4096
#define PTX_TABLES_MAX  16

struct ptx_inst {
    // What comes after it; NULL: the thread ends.
    struct ptx_inst *(*run)(uint64_t *r, struct ptx_inst *i);
    int32_t guard; // runs unless slot guard has this value
    int32_t unless;
    int32_t d, a, b, c, e; // slots; of an address, a
    int32_t list[PTX_LIST_MAX];
    int16_t n, bytes; // numbers of a vector, bytes of each
    int32_t space;    // slot
    int32_t mode;     // as run needs it
    int64_t offset;   // of an address
    struct ptx_inst *to;
    const struct ptx_kernel *kernel;
    uint64_t ran;
    int line;            // of the PTX
    int from, from_line; // file (of .file) and line of the source
    const char *name;
};

struct ptx_kernel {
    char *name;
    const struct ptx_file *file;
    struct ptx_inst *code; // [n]
    int n, n_slots, first_constant, local_bytes, param_bytes, threads_max;
    uint64_t *constants; // [n_slots - first_constant]
    uint64_t launches;
};

struct ptx_file {
    char *path;
    int arch;
    struct ptx_kernel *kernels; // [n]
    int n;
    char *sources[256]; // by number of .file, NULL where there is none
    struct {
        uint8_t *at;
        int64_t bytes;
    } tables[PTX_TABLES_MAX]; // constant ones
    int n_tables;
};

/* Ends the program with this status: PTX that cannot be read is no failure of a kernel. cmocka's
 * status is the number of tests that failed, so that a small one would be taken for that.
 * "PATH:LINE: words" on stderr. */
#define PTX_UNREADABLE 99
void ptx_refuse(const char *path, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* ---- ptx_read.c ---- */

/* Stays for as long as the program runs. */
struct ptx_file *ptx_read(const char *path);

/* ---- what it reads, for those who know instructions ---- */

enum ptx_operand_kind { OPERAND_SLOT, OPERAND_LIST, OPERAND_ADDRESS, OPERAND_LABEL };

struct ptx_operand {
    enum ptx_operand_kind kind;
    int32_t slot, second; // second: behind |, else SLOT_ZERO
    int bits;             // of the register in slot, of the widest in the list; 0: constants
    int64_t offset;
    int32_t list[PTX_LIST_MAX];
    int n;
    const char *label;
};

#define PTX_WORDS_MAX 12

/* An instruction: its name, whole and cut at dots ("" behind the last), and operands. */
struct ptx_words {
    const char *path;
    int line;
    const char *name;
    char word[PTX_WORDS_MAX][16];
    struct ptx_operand operand[6];
    int n;
    const int64_t *constants; // of slots below zero: -1 is the first
};

/* Fill i from w. 0 when the name is none of theirs. */
int ptx_numbers(const struct ptx_words *w, struct ptx_inst *i);
int ptx_memory(const struct ptx_words *w, struct ptx_inst *i);
/* Refuses an instruction that has not n operands of these kinds: s slot, l list, a address, b
 * label. */
void ptx_form(const struct ptx_words *w, const char *kinds);
/* The value of a constant operand; refuses what is none. */
int64_t ptx_constant(const struct ptx_words *w, const struct ptx_operand *o);

/* ---- ptx.c ---- */

/* Reads a file, whose instructions ptx_place() knows from then on. */
struct ptx_file *ptx_add(const char *path);
/* Reads what SIMT_PTX names, once; 1 when kernels are interpreted. */
int ptx_on(void);
/* The kernel that the compiler put at `code`. NULL where no PTX has it, which is the error. */
struct ptx_kernel *ptx_find(const void *code, struct simt_site at);
/* Counts a launch. 0, and the error, when the kernel has other parameters or fewer threads. */
int ptx_takes(struct ptx_kernel *k, int64_t param_bytes, int n_threads, struct simt_site at);
/* The running thread, to its end. */
void ptx_thread(const struct ptx_kernel *k);
/* Where the instruction at pc stands; 0 when none does. to: at least 200 bytes. */
int ptx_place(const void *pc, char *to);
struct simt_site ptx_site(const struct ptx_inst *i);

/* ---- simt.c ---- */

/* One block of a kernel that no function of the program is: for tests. params: simt_run(). */
void ptx_run(struct ptx_kernel *kernel, unsigned n_threads, int64_t shared_bytes,
             const void *params, int64_t bytes);

#endif
