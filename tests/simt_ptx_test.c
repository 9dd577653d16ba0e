/* tests/simt_ptx_test.c - the interpreter of PTX (tests/simt/ptx.h), on PTX written by hand: no
 * nvcc needed.
 *
 * Each instruction that kernels use gives what the PTX ISA says, written out here; what cannot be
 * read ends the program with its line; what a thread does wrong is met with it. */
#include "tests/ops_help.h"
#include "tests/simt/ptx.h"
#include "tests/temp_dir.h"

#include <sys/wait.h>
#include <unistd.h>

#define HEAD                                                                                       \
    ".version 9.0\n.target sm_80\n.address_size 64\n"                                              \
    ".global .align 2 .b8 table[6] = {1, 0, 2, 255}; .extern .shared .align 16 .b8 pool[];\n"

/* Three numbers in registers of every kind: 1, 2 and 3 of each; 0 is for the result. */
#define KERNEL                                                                                     \
    ".visible .entry _Z4%sv(\n.param .u64 out,\n.param .u64 in\n)\n.maxntid 64, 1, 1\n{\n"         \
    ".local .align 16 .b8 depot[64];\n"                                                            \
    ".reg .pred %%p<8>;\n.reg .b16 %%rs<8>;\n.reg .b32 %%r<16>;\n.reg .f32 %%f<8>;\n"              \
    ".reg .b64 %%rd<16>;\n.reg .b64 %%SP;\n"                                                       \
    "ld.param.u64 %%rd8, [out];\nld.param.u64 %%rd9, [in];\n"                                      \
    "ld.global.u64 %%rd1, [%%rd9];\nld.global.u64 %%rd2, [%%rd9+8];\nld.global.u64 %%rd3, "        \
    "[%%rd9+16];\n"                                                                                \
    "cvt.u32.u64 %%r1, %%rd1;\ncvt.u32.u64 %%r2, %%rd2;\ncvt.u32.u64 %%r3, %%rd3;\n"               \
    "mov.b32 %%f1, %%r1;\nmov.b32 %%f2, %%r2;\nmov.b32 %%f3, %%r3;\n"                              \
    "cvt.u16.u32 %%rs1, %%r1;\ncvt.u16.u32 %%rs2, %%r2;\n"                                         \
    "and.b32 %%r9, %%r1, 1;\nsetp.ne.s32 %%p1, %%r9, 0;\nand.b32 %%r9, %%r2, 1;\n"                 \
    "setp.ne.s32 %%p2, %%r9, 0;\nand.b32 %%r9, %%r3, 1;\nsetp.ne.s32 %%p3, %%r9, 0;\n"             \
    "mov.u32 %%r8, %%tid.x;\nmul.wide.u32 %%rd10, %%r8, 8;\nadd.s64 %%rd8, %%rd8, %%rd10;\n"       \
    "// here it comes\n%s\n"                                                                       \
    "ret;\n}\n"

/* How the result of a kind gets into %rd0. */
static const char *store_of(char kind)
{
    return kind == 'r'   ? "cvt.u64.u32 %rd0, %r0;\nst.global.u64 [%rd8], %rd0;"
           : kind == 's' ? "cvt.u32.u16 %r0, %rs0;\ncvt.u64.u32 %rd0, %r0;\nst.global.u64 [%rd8], "
                           "%rd0;"
           : kind == 'f' ? "mov.b32 %r0, %f0;\ncvt.u64.u32 %rd0, %r0;\nst.global.u64 [%rd8], %rd0;"
           : kind == 'p' ? "selp.b64 %rd0, 1, 0, %p0;\nst.global.u64 [%rd8], %rd0;"
                         : "st.global.u64 [%rd8], %rd0;";
}

#define M1  UINT64_MAX // -1
#define F1  0x3f800000
#define F2  0x40000000
#define F3  0x40400000
#define NaN 0x7fc00001
#define INF 0x7f800000

static const struct {
    const char *text;
    char kind;
    uint64_t a, b, c, want;
} cases[] = {
    {"mov.u64 %rd4, table;\nld.global.nc.u16 %rs0, [%rd4+2];", 's', 0, 0, 0, 0xff02},
    {"mov.u64 %rd4, table;\nld.global.u16 %rs0, [%rd4+4];", 's', 0, 0, 0, 0},
    {"add.s32 %r0, %r1, %r2;", 'r', 0xffffffff, 2, 0, 1},
    {"add.s32 %r0, %r1, -5;", 'r', 3, 0, 0, 0xfffffffe},
    {"add.s64 %rd0, %rd1, %rd2;", 'd', M1, 2, 0, 1},
    {"sub.s32 %r0, %r1, %r2;", 'r', 1, 2, 0, 0xffffffff},
    {"sub.s64 %rd0, %rd1, %rd2;", 'd', 1, 2, 0, M1},
    {"neg.s32 %r0, %r1;", 'r', 5, 0, 0, 0xfffffffb},
    {"neg.s64 %rd0, %rd1;", 'd', 5, 0, 0, (uint64_t)-5},
    {"mul.lo.s32 %r0, %r1, %r2;", 'r', 0x10001, 0x10001, 0, 0x20001},
    {"mul.lo.s64 %rd0, %rd1, %rd2;", 'd', M1, 7, 0, (uint64_t)-7},
    {"mul.hi.s32 %r0, %r1, %r2;", 'r', 0xffffffff, 0x40000000, 0, 0xffffffff},
    {"mul.hi.u32 %r0, %r1, %r2;", 'r', 0xffffffff, 0x40000000, 0, 0x3fffffff},
    {"mul.wide.s32 %rd0, %r1, %r2;", 'd', 0xffffffff, 4, 0, (uint64_t)-4},
    {"mul.wide.u32 %rd0, %r1, 4;", 'd', 0xffffffff, 0, 0, 0x3fffffffc},
    {"mul.wide.u16 %r0, %rs1, %rs2;", 'r', 0xffff, 0x8001, 0, 0x80007fff},
    {"mad.lo.s32 %r0, %r1, %r2, %r3;", 'r', 3, 5, 0xffffffff, 14},
    {"div.s32 %r0, %r1, %r2;", 'r', 0xfffffff9, 2, 0, 0xfffffffd},
    {"div.u32 %r0, %r1, %r2;", 'r', 0xfffffff9, 2, 0, 0x7ffffffc},
    {"div.u16 %rs0, %rs1, %rs2;", 's', 0xfff9, 2, 0, 0x7ffc},
    {"rem.s32 %r0, %r1, %r2;", 'r', 0xfffffff9, 2, 0, 0xffffffff},
    {"min.s32 %r0, %r1, %r2;", 'r', 0xffffffff, 2, 0, 0xffffffff},
    {"max.s32 %r0, %r1, %r2;", 'r', 0xffffffff, 2, 0, 2},
    {"max.u32 %r0, %r1, %r2;", 'r', 0xffffffff, 2, 0, 0xffffffff},
    {"min.s64 %rd0, %rd1, %rd2;", 'd', M1, 2, 0, M1},
    {"min.u64 %rd0, %rd1, %rd2;", 'd', M1, 2, 0, 2},
    {"and.b32 %r0, %r1, -8;", 'r', 0xf0000017, 0, 0, 0xf0000010},
    {"and.b16 %rs0, %rs1, %rs2;", 's', 0x1fff0, 0xf00f, 0, 0xf000},
    {"or.b16 %rs0, %rs1, %rs2;", 's', 0xf0, 0xf, 0, 0xff},
    {"or.b64 %rd0, %rd1, %rd2;", 'd', 1ull << 63, 1, 0, 1ull << 63 | 1},
    {"xor.b64 %rd0, %rd1, -1;", 'd', 1, 0, 0, ~1ull},
    {"and.pred %p0, %p1, %p2;", 'p', 1, 0, 0, 0},
    {"or.pred %p0, %p1, %p2;", 'p', 1, 0, 0, 1},
    {"xor.pred %p0, %p1, %p2;", 'p', 1, 1, 0, 0},
    {"not.pred %p0, %p1;", 'p', 0, 0, 0, 1},
    {"mov.pred %p0, -1;", 'p', 0, 0, 0, 1},
    {"not.b32 %r0, %r1;", 'r', 5, 0, 0, 0xfffffffa},
    {"not.b64 %rd0, %rd1;", 'd', 5, 0, 0, (uint64_t)-6},
    {"shl.b32 %r0, %r1, %r2;", 'r', 3, 31, 0, 0x80000000},
    {"shl.b32 %r0, %r1, %r2;", 'r', 3, 32, 0, 0},
    {"shl.b64 %rd0, %rd1, 63;", 'd', 3, 0, 0, 1ull << 63},
    {"shl.b64 %rd0, %rd1, %r2;", 'd', 3, 64, 0, 0},
    {"shr.u32 %r0, %r1, 31;", 'r', 0x80000000, 0, 0, 1},
    {"shr.u32 %r0, %r1, %r2;", 'r', 0x80000000, 32, 0, 0},
    {"shr.s32 %r0, %r1, %r2;", 'r', 0x80000000, 99, 0, 0xffffffff},
    {"shr.s64 %rd0, %rd1, 60;", 'd', 1ull << 63, 0, 0, (uint64_t)-8},
    {"shr.u64 %rd0, %rd1, 60;", 'd', 1ull << 63, 0, 0, 8},
    {"shr.s16 %rs0, %rs1, 4;", 's', 0x8000, 0, 0, 0xf800},
    {"shr.u16 %rs0, %rs1, 4;", 's', 0x8000, 0, 0, 0x800},
    {"popc.b32 %r0, %r1;", 'r', 0xf00f0001, 0, 0, 9},
    {"prmt.b32 %r0, %r1, %r2, 30224;", 'r', 0x33221100, 0x77665544, 0, 0x77661100},
    {"prmt.b32 %r0, %r1, %r2, %r3;", 'r', 0x00008000, 0, 0x9999, 0xffffffff},
    {"bfi.b32 %r0, %r1, %r2, 8, 4;", 'r', 0xff, 0x11111111, 0, 0x11111f11},
    {"bfi.b32 %r0, %r1, %r2, 31, 9;", 'r', 3, 0, 0, 0x80000000},
    {"bfi.b32 %r0, %r1, %r2, 40, 9;", 'r', 3, 7, 0, 7},
    {"bfi.b64 %rd0, %rd1, %rd2, 32, 32;", 'd', 5, 7, 0, 5ull << 32 | 7},
    {"dp4a.s32.s32 %r0, %r1, %r2, %r3;", 'r', 0xff028001, 0x01030280, 10, 10u - 1 + 6 - 256 - 128},
    {"selp.b32 %r0, %r1, %r2, %p3;", 'r', 5, 6, 1, 5},
    {"selp.u16 %rs0, %rs1, %rs2, %p3;", 's', 5, 6, 0, 6},
    {"selp.b16 %rs0, %rs1, %rs2, %p3;", 's', 5, 6, 1, 5},
    {"selp.f32 %f0, %f1, 0f40000000, %p3;", 'f', F1, 0, 0, F2},
    {"selp.b64 %rd0, -1, %rd2, %p3;", 'd', 0, 6, 1, M1},
    {"mov.b32 %r0, {%rs1, %rs2};", 'r', 0x15678, 0x1234, 0, 0x12345678},
    {"mov.b64 {%r4, %r0}, %rd1;", 'r', 0x1122334455667788, 0, 0, 0x11223344},
    {"mov.b32 %r0, {-1, %rs2};", 'r', 0, 0x1234, 0, 0x1234ffff},
    {"mov.b64 %rd0, {%r1, %r2};", 'd', 1, 2, 0, 2ull << 32 | 1},
    {"cvt.s64.s32 %rd0, %r1;", 'd', 0x80000000, 0, 0, 0xffffffff80000000},
    {"cvt.u64.u16 %rd0, %rs1;", 'd', 0x18001, 0, 0, 0x8001},
    {"cvt.u64.u32 %rd0, %r1;", 'd', 0x80000000, 0, 0, 0x80000000},
    {"cvt.s16.s8 %rs0, %rs1;", 's', 0x180, 0, 0, 0xff80},
    {"cvt.s32.s8 %r0, %r1;", 'r', 0x180, 0, 0, 0xffffff80},
    {"cvt.rn.f32.s32 %f0, %r1;", 'f', 0xffffffff, 0, 0, 0xbf800000},
    {"cvt.rn.f32.s32 %f0, %r1;", 'f', 0x01000001, 0, 0, 0x4b800000},
    {"cvt.rn.f32.u32 %f0, %r1;", 'f', 0xffffffff, 0, 0, 0x4f800000},
    {"cvt.rn.f32.s16 %f0, %rs1;", 'f', 0xffff, 0, 0, 0xbf800000},
    {"cvt.rn.f32.u16 %f0, %rs1;", 'f', 0xffff, 0, 0, 0x477fff00},
    {"cvt.rzi.s32.f32 %r0, %f1;", 'r', 0xc0266666, 0, 0, 0xfffffffe},
    {"cvt.rzi.s32.f32 %r0, %f1;", 'r', NaN, 0, 0, 0},
    {"cvt.rzi.s32.f32 %r0, %f1;", 'r', INF, 0, 0, 0x7fffffff},
    {"cvt.rzi.s32.f32 %r0, %f1;", 'r', 0xff800000, 0, 0, 0x80000000},
    {"ex2.approx.ftz.f32 %f0, %f1;", 'f', 0xc0400000, 0, 0, 0x3e000000},
    {"div.s32 %r0, %r1, %r2;", 'r', 7, 0, 0, 0xffffffff}, // by zero: whatever it likes
    {"rem.s32 %r0, %r1, %r2;", 'r', 7, 0, 0, 0xffffffff},
    {"ex2.approx.ftz.f32 %f0, %f1;", 'f', 0xc2fd0000, 0, 0, 0}, // -126.5
    {"ex2.approx.ftz.f32 %f0, %f1;", 'f', 0xff800000, 0, 0, 0},
    {"cvt.rn.bf16x2.f32 %r0, %f1, %f2;", 'r', 0x3f808000, 0xbf818001, 0, 0x3f80bf82},
    {"cvt.rn.bf16x2.f32 %r0, %f1, %f2;", 'r', 0x7f7fffff, 0xff800001, 0, 0x7f807fff},
    {"cvt.rn.f16.f32 %rs0, %f1;", 's', 0xc77ff000, 0, 0, 0xfc00},
    {"cvt.rn.f16.f32 %rs0, %f1;", 's', 0x33400000, 0, 0, 1},
    {"cvt.rn.f16.f32 %rs0, %f1;", 's', 0xff800001, 0, 0, 0x7fff},
    {"cvt.f32.f16 %f0, %rs1;", 'f', 0x8001, 0, 0, 0xb3800000},
    {"cvt.f32.f16 %f0, %rs1;", 'f', 0xfe01, 0, 0, 0x7fffffff},
    {"cvt.rmi.f32.f32 %f0, %f1;", 'f', 0xbf800001, 0, 0, 0xc0000000},
    {"cvt.rmi.f32.f32 %f0, %f1;", 'f', 0x80000000, 0, 0, 0x80000000},
    {"cvt.rmi.f32.f32 %f0, %f1;", 'f', NaN, 0, 0, 0x7fffffff},
    {"add.rn.f32 %f0, %f1, %f2;", 'f', F1, F2, 0, F3},
    {"add.rn.f32 %f0, %f1, %f2;", 'f', F1, 0x33ffffff, 0, 0x3f800001},
    {"add.rz.f32 %f0, %f1, %f2;", 'f', F1, 0x33ffffff, 0, F1},
    {"add.rz.f32 %f0, %f1, %f2;", 'f', 0xbf800000, 0xb3ffffff, 0, 0xbf800000},
    {"add.rz.f32 %f0, %f1, %f2;", 'f', F1, 0xb3000000, 0, 0x3f7fffff},
    {"sub.rn.f32 %f0, %f1, %f2;", 'f', INF, INF, 0, 0x7fffffff},
    {"mul.rn.f32 %f0, %f1, %f2;", 'f', 0x00000001, 0x3f000000, 0, 0},
    {"mul.rn.f32 %f0, %f1, %f2;", 'f', 0x00000003, 0x3f000000, 0, 2},
    {"fma.rn.f32 %f0, %f1, %f2, %f3;", 'f', 0x3f800001, 0x3f800001, 0xbf800002, 0x28800000},
    {"fma.rn.f32 %f0, %f1, %f2, %f3;", 'f', NaN, F1, F1, 0x7fffffff},
    {"div.rn.f32 %f0, %f1, %f2;", 'f', F1, F3, 0, 0x3eaaaaab},
    {"rcp.rn.f32 %f0, %f1;", 'f', F3, 0, 0, 0x3eaaaaab},
    {"sqrt.rn.f32 %f0, %f1;", 'f', F2, 0, 0, 0x3fb504f3},
    {"max.f32 %f0, %f1, %f2;", 'f', NaN, F1, 0, F1},
    {"max.f32 %f0, %f1, %f2;", 'f', F1, NaN, 0, F1},
    {"max.f32 %f0, %f1, %f2;", 'f', 0x80000000, 0, 0, 0},
    {"max.f32 %f0, %f1, %f2;", 'f', 0, 0x80000000, 0, 0},
    {"min.f32 %f0, %f1, %f2;", 'f', F1, F2, 0, F1},
    {"min.f32 %f0, %f1, %f2;", 'f', F1, NaN, 0, F1},
    {"min.f32 %f0, %f1, %f2;", 'f', 0, 0x80000000, 0, 0x80000000},
    {"abs.f32 %f0, %f1;", 'f', 0xbf800000, 0, 0, F1},
    {"neg.f32 %f0, %f1;", 'f', 0, 0, 0, 0x80000000},
    {"setp.lt.s32 %p0, %r1, %r2;", 'p', 0xffffffff, 0, 0, 1},
    {"setp.lt.u32 %p0, %r1, %r2;", 'p', 0xffffffff, 0, 0, 0},
    {"setp.ge.s64 %p0, %rd1, -1;", 'p', M1, 0, 0, 1},
    {"setp.lt.u64 %p0, %rd1, %rd2;", 'p', M1, 0, 0, 0},
    {"setp.gt.u16 %p0, %rs1, %rs2;", 'p', 0x10002, 1, 0, 1},
    {"setp.eq.s16 %p0, %rs1, %rs2;", 'p', 0x10002, 2, 0, 1},
    {"setp.lt.s16 %p0, %rs1, %rs2;", 'p', 0x8000, 0, 0, 1},
    {"shl.b16 %rs0, %rs1, 4;", 's', 0x1234, 0, 0, 0x2340},
    {"mul.lo.s16 %rs0, %rs1, %rs2;", 's', 0x8003, 3, 0, 0x8009},
    {"add.s16 %rs0, %rs1, %rs2;", 's', 0xffff, 3, 0, 2},
    {"sub.s16 %rs0, %rs1, %rs2;", 's', 2, 3, 0, 0xffff},
    {"setp.eq.f32 %p0, %f1, %f2;", 'p', 0, 0x80000000, 0, 1},
    {"setp.ne.f32 %p0, %f1, %f2;", 'p', NaN, F1, 0, 0},
    {"setp.neu.f32 %p0, %f1, %f2;", 'p', NaN, F1, 0, 1},
    {"setp.equ.f32 %p0, %f1, %f2;", 'p', NaN, F1, 0, 1},
    {"setp.lt.f32 %p0, %f1, %f2;", 'p', NaN, F1, 0, 0},
    {"setp.ltu.f32 %p0, %f1, %f2;", 'p', NaN, F1, 0, 1},
    {"setp.leu.f32 %p0, %f1, %f2;", 'p', F2, F1, 0, 0},
    {"setp.gtu.f32 %p0, %f1, %f2;", 'p', F1, F1, 0, 0},
    {"setp.geu.f32 %p0, %f1, %f2;", 'p', F1, F1, 0, 1},
    {"setp.num.f32 %p0, %f1, %f2;", 'p', F1, NaN, 0, 0},
    {"setp.nan.f32 %p0, %f1, %f2;", 'p', F1, NaN, 0, 1},
    {"mov.u32 %r0, %ntid.x;", 'r', 0, 0, 0, 32},
    {"mov.u32 %r0, 1;\n@%p1 mov.u32 %r0, 2;\n@!%p1 add.s32 %r0, %r0, 10;", 'r', 1, 0, 0, 2},
    {"mov.u32 %r0, 1;\n@%p1 mov.u32 %r0, 2;\n@!%p1 add.s32 %r0, %r0, 10;", 'r', 0, 0, 0, 11},
    {"mov.u32 %r0, 0;\n$L_a:\nadd.s32 %r0, %r0, 3;\nsetp.lt.u32 %p4, %r0, %r1;\n@%p4 bra $L_a;",
     'r', 7, 0, 0, 9},
    {"bra.uni $L_b;\nret;\n$L_b: mov.u32 %r0, 4;", 'r', 0, 0, 0, 4},
    {"ld.global.s8 %r0, [%rd9];", 'r', 0x80, 0, 0, 0xffffff80},
    {"ld.global.s8 %rs0, [%rd9];", 's', 0x80, 0, 0, 0xff80},
    {"ld.global.u8 %rs0, [%rd9];", 's', 0x80, 0, 0, 0x80},
    {"ld.global.s32 %rd0, [%rd9];", 'd', 0x80000000, 0, 0, 0xffffffff80000000},
    {"ld.global.v2.u32 {%r4, %r0}, [%rd9+8];", 'r', 0, 5ull << 32, 0, 5},
    {"ld.u16 %rs0, [%rd9+2];", 's', 0x12345678, 0, 0, 0x1234},
    {"mov.b64 %rd4, in;\nld.param.u64 %rd5, [%rd4];\nsub.s64 %rd0, %rd5, %rd9;", 'd', 0, 0, 0, 0},
    {".pragma \"used_bytes_mask 15\";\nld.param.v2.u32 {%r4, %r5}, [out];\ncvt.u32.u64 %r6, "
     "%rd8;\nmul.lo.s32 %r7, %r8, 8;\nadd.s32 %r4, %r4, %r7;\nsub.s32 %r0, %r4, %r6;",
     'r', 0, 0, 0, 0},
    {"mov.u64 %SP, depot;\nst.local.v4.f32 [%SP+16], {%f1, %f2, %f3, %f1};\nld.local.f32 %f0, "
     "[%SP+20];",
     'f', 1, 2, 3, 2},
    {"mov.u32 %r4, pool;\nmad.lo.s32 %r4, %r8, 8, %r4;\nst.shared.u64 [%r4+16], %rd1;\n"
     "{ .reg .b64 %tmp;\ncvt.u64.u32 %tmp, %r4;\ncvta.shared.u64 %rd4, %tmp; }\n"
     "add.s64 %rd4, %rd4, 16;\nld.u64 %rd0, [%rd4];",
     'd', 77, 0, 0, 77},
    {"shfl.sync.bfly.b32 %r4|%p4, %r8, 5, 31, -1;\nxor.b32 %r4, %r4, %r8;\nmov.u32 %r0, %r4;", 'r',
     0, 0, 0, 5},
    {"shfl.sync.idx.b32 %r0|%p4, %r8, 9, 31, -1;", 'r', 0, 0, 0, 9},
    {"shfl.sync.down.b32 %r4|%p4, %r8, 31, 31, -1;\nvote.sync.ballot.b32 %r0, %p4, -1;", 'r', 0, 0,
     0, 1},
    {"shfl.sync.idx.b32 %r4|%p4, %r8, 1, 6175, -1;\nand.b32 %r5, %r8, 24;\nsub.s32 %r0, %r4, %r5;",
     'r', 0, 0, 0, 1},
    {"bar.warp.sync -1;\nbar.sync 0;\nmov.u32 %r0, 1;", 'r', 0, 0, 0, 1},
    {"mov.u32 %r4, pool;\nsetp.ne.s32 %p4, %r8, 0;\n@!%p4 st.shared.u32 [%r4], %r1;\nbar.sync 0;\n"
     "atom.shared.add.u32 %r5, [%r4], 2;\nbar.sync 0;\nld.shared.u32 %r0, [pool];",
     'r', 5, 0, 0, 69},
    {"mov.u32 %r4, pool;\nmad.lo.s32 %r4, %r8, 16, %r4;\n"
     "cp.async.cg.shared.global [%r4], [%rd9], 16, 8;\ncp.async.commit_group;\n"
     "cp.async.wait_group 0;\nld.shared.v2.u64 {%rd4, %rd5}, [%r4];\nadd.s64 %rd0, %rd4, %rd5;",
     'd', 5, 900, 0, 5},
};
#define N_CASES ((int)(sizeof cases / sizeof *cases))

/* A file with one kernel per case, the names kernel 000 on. */
static struct ptx_file *file_of(const char *name, const char *text)
{
    temp_write_text(name, text);
    return ptx_add(temp_path(name));
}

static const char *kernel_text(int i, const char *body)
{
    static char text[8192];
    char name[8];
    snprintf(name, sizeof name, "k%03d", i);
    snprintf(text, sizeof text, KERNEL, name, body);
    return text;
}

static void every_instruction_does_what_ptx_says(void **state)
{
    (void)state;
    enum { TEXT_BYTES = 4096 * (N_CASES + 1) };
    char *text = take(TEXT_BYTES), body[2048];
    int at = snprintf(text, TEXT_BYTES, "%s", HEAD);
    for (int i = 0; i < N_CASES; i++) {
        snprintf(body, sizeof body, "%s\n%s", cases[i].text, store_of(cases[i].kind));
        at += snprintf(text + at, (size_t)(TEXT_BYTES - at), "%s", kernel_text(i, body));
    }
    struct ptx_file *f = file_of("cases.ptx", text);
    assert_int_equal(f->n, N_CASES);
    assert_int_equal(f->arch, 80);
    for (int i = 0; i < N_CASES; i++) {
        const uint64_t in[] = {cases[i].a, cases[i].b, cases[i].c, 0};
        uint64_t got[32];
        simt_clear();
        simt_free_all();
        const uint64_t *params[] = {simt_alloc(sizeof got), simt_of(in, sizeof in)};
        ptx_run(&f->kernels[i], 32, 1024, params, sizeof params);
        if (simt_error())
            fail_msg("%s: %s", cases[i].text, simt_error());
        simt_get(got, params[0], sizeof got);
        if (got[0] != cases[i].want)
            fail_msg("%s: %llx, not %llx", cases[i].text, (unsigned long long)got[0],
                     (unsigned long long)cases[i].want);
        assert_int_equal(f->kernels[i].launches, 1);
    }
    free(text);
}

/* The line of a kernel's body that is the first of its own. */
static int body_line(void)
{
    const char *at = kernel_text(0, "");
    int line = 1;
    for (const char *end = strstr(at, "// here"); at < end; at++)
        line += *at == '\n';
    for (const char *head = HEAD; *head; head++)
        line += *head == '\n';
    return line + 1;
}

/* ---- what is refused ---- */

/* What the program says when it reads this, and that it ends there. */
static void assert_refused(const char *text, const char *words, int line)
{
    char said[512] = "", place[64];
    int fds[2], status;
    temp_write_text("bad.ptx", text);
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(fds[1], 2);
        (void)ptx_read(temp_path("bad.ptx"));
        _exit(0);
    }
    close(fds[1]);
    for (ssize_t at = 0, n = 1; n > 0; at += n)
        n = read(fds[0], said + at, sizeof said - 1 - (size_t)at);
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    snprintf(place, sizeof place, "bad.ptx:%d: ", line);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != PTX_UNREADABLE || !strstr(said, words) ||
        (line > 0 && !strstr(said, place)))
        fail_msg("%s: says '%s', not '%s' of line %d", text, said, words, line);
}

static void what_is_unknown_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *words;
    } bad[] = {
        {"ex2.approx.f32 %f0, %f1;", "unknown instruction ex2.approx.f32"},
        {"add.ftz.f32 %f0, %f1, %f2;", "unknown instruction add.ftz.f32"},
        {"add.f32 %f0, %f1, %f2;", "unknown instruction add.f32"},
        {"ld.global.v2.u32.foo {%r0, %r1}, [%rd9];", "unknown instruction"},
        {"ld.const.u32 %r0, [%rd9];", "unknown instruction"},
        {"ld.volatile.global.u32 %r0, [%rd9];", "unknown instruction"},
        {"add.s32 %r0, %r1;", "other operands"},
        {"add.s32 %r0, %r1, [%rd9];", "other operands"},
        {"add.s32 %r0, %r1, %r99;", "unknown operand %r99"},
        {"add.s32 %r0, %r1, nobody;", "unknown operand nobody"},
        {"mov.u32 %r0, %laneid;", "unknown operand %laneid"},
        {"ld.global.u64 %r0, [%rd9];", "registers of 32 bits"},
        {"ld.global.v2.u32 {%r0, %r1, %r2}, [%rd9];", "of 3 registers"},
        {"ld.global.v2.s32 {%rd0, %rd1}, [%rd9];", "wider registers"},
        {"ld.global.u32 %r0, [%rd9+%r1];", "unknown offset"},
        {"bra $L_nowhere;", "no label $L_nowhere"},
        {"bar.sync 1;", "not number 0"},
        {"cp.async.wait_group %r1;", "where a number has to be"},
        {"cp.async.cg.shared.global [%r1], [%rd9], 8;", "of 8 bytes"},
        {".pragma \"used_bytes_mask 15\"; ld.global.v2.u32 {%r0, %r1}, [%rd9];", "not used"},
        {".pragma \"something\";", "unknown directive .pragma"},
        {"call.uni foo, ();", "unknown"},
    };
    char text[8400];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s%s", HEAD, kernel_text(0, bad[i].body));
        assert_refused(text, bad[i].words, body_line());
    }
    assert_refused(".func foo(){ret;}", "foo", 1);
    assert_refused(".version 9.0\n.global .align 4 .b8 table[4];", "unknown directive", 2);
    assert_refused(".version 9.0\n.global .align 1 .b8 table[2] = {1, 2, 3};", "of 2 bytes", 2);
    assert_refused(HEAD ".visible .entry _Z1kv(){\nadd.s32", "without an end", 0);
    assert_refused(HEAD ".visible .entry _Z1kv(){\nbar.sync 0;\n}", "does not end", 0);
    assert_refused(HEAD ".visible .entry _Z1kv(){\nret;\n", "does not end", 0);
    assert_refused(HEAD ".visible .entry _Z1kv(){\nret;\ntrap;\n}\nret;", "unknown directive ret",
                   9);
    assert_refused(HEAD ".section .debug\n.visible .entry _Z1kv(){ret;}", "before the last", 0);
}

/* ---- what threads do wrong ---- */

static void faults_are_met_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *body, *words;
        int line; // of the body
    } bad[] = {
        {"ld.param.u64 %rd0, [in+8];", "of 16 of parameters", 0},
        {"mov.b64 %rd4, in;\nld.param.u64 %rd0, [%rd4+-16];", "of parameters", 1},
        {"mov.u64 %SP, depot;\nst.local.f32 [%SP+64], %f1;", "of 64 of locals", 1},
        {"mov.u64 %SP, depot;\nst.local.f32 [%SP+-4], %f1;", "of locals", 1},
        {"st.shared.u32 [pool+1024], %r1;", "from 1024 on of 1024 of shared memory", 0},
        {"st.shared.u32 [pool+-4], %r1;", "of shared memory", 0},
        {"ld.shared.u32 %r0, [pool];", "nobody has written", 0},
        {"ld.global.u32 %r0, [%rd9+32];", "outside of device memory", 0},
        {"ld.global.v2.u32 {%r0, %r4}, [%rd9+4];", "8 bytes that are not on a multiple", 0},
        {"ld.global.u64 %rd0, [%rd8];", "nobody has written", 0},
        {"mov.u64 %rd4, table;\nld.global.u16 %rs0, [%rd4+6];", "neither device", 1},
        {"mov.u64 %rd4, table;\nst.global.u16 [%rd4], %rs1;", "neither device", 1},
        {"st.global.u64 [%rd9], %rd1;\nld.global.u64 %rd0, [%rd9];", "race", 0},
        {"st.shared.u32 [pool], %r1;", "race", 0},
        {"mul.lo.s32 %r4, %r8, 16;\ncp.async.cg.shared.global [%r4], [%rd9], 16;", "never waited",
         1},
        {"trap;", "trap", 0},
        {"setp.lt.u32 %p4, %r8, 7;\n@%p4 bar.sync 0;", "never comes to", 1},
        {"setp.lt.u32 %p4, %r8, 7;\n@%p4 bar.warp.sync -1;", "mask ffffffff", 1},
        {"shfl.sync.down.b32 %r0|%p4, %r8, 1, 30, -1;", "with bound 1e", 0},
    };
    const uint64_t in[] = {0, 0, 0, 0};
    char text[8400], place[64];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s%s", HEAD, kernel_text(0, bad[i].body));
        struct ptx_file *f = file_of("fault.ptx", text);
        simt_clear();
        simt_free_all();
        const uint64_t *params[] = {simt_alloc(256), simt_of(in, sizeof in)};
        ptx_run(f->kernels, 32, 1024, params, sizeof params);
        const char *error = simt_error() ? simt_error() : "nothing";
        snprintf(place, sizeof place, "fault.ptx:%d", body_line() + bad[i].line);
        if (!strstr(error, bad[i].words) || !strstr(error, place))
            fail_msg("%s: '%s', not '%s' at %s", bad[i].body, error, bad[i].words, place);
    }
    simt_clear();
    struct ptx_file *f = file_of("fault.ptx", text);
    ptx_run(f->kernels, 32, 1024, in, 24);
    assert_non_null(strstr(simt_error(), "parameters of 24 bytes, of 16 in the PTX"));
    simt_clear();
    ptx_run(f->kernels, 65, 1024, in, 16);
    assert_non_null(strstr(simt_error(), "of 64 at most"));
    simt_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_does_what_ptx_says),
        cmocka_unit_test(what_is_unknown_is_refused),
        cmocka_unit_test(faults_are_met_with_their_line),
    };
    return cmocka_run_group_tests(tests, temp_dir_setup, temp_dir_teardown);
}
