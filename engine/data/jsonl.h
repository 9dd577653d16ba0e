/* engine/data/jsonl.h - finds the lines of a text file in one pass, and reads single lines by
 * offset.
 *
 * Owns: the open file, one buffer that grows to the longest line (at most line_max bytes), the hash
 * of the file. Refuses: what a line means; compressed and UTF-16 files (ERR_INPUT names the
 * format).
 *
 *     jsonl_open(&j, path);
 *     while (jsonl_next(&j, &line, &found) == OK && found) remember(line.offset);
 *     jsonl_read(&j, offset, &text, &n_bytes);
 *     jsonl_close(&j); */
#ifndef ENGINE_DATA_JSONL_H
#define ENGINE_DATA_JSONL_H

#include "engine/data/file.h"

#define JSONL_LINE_BYTES_MAX ((int64_t)64 << 20)
#define JSONL_LINES_MAX      ((int64_t)UINT32_MAX)

struct jsonl {
    struct file file;
    int64_t line_max;   // bytes: a longer line is not read; jsonl_open(): JSONL_LINE_BYTES_MAX
    uint64_t hash;      // of all bytes, set once jsonl_next() finds no more lines
    int64_t mark_bytes; // jsonl_mark()
    uint64_t mark_hash; // of the first mark_bytes bytes, set once jsonl_next() is past them
    // Private.
    char *buf; // owned
    int64_t buf_cap;
    int64_t at;     // offset of buf[0] in the file
    int64_t n_buf;  // bytes in buf
    int64_t pos;    // of jsonl_next: the next byte to read
    int64_t line;   // lines begun so far
    int64_t hashed; // bytes that `hash` covers
};

/* Position of a line. */
struct jsonl_line {
    int64_t offset;  // of its first byte (a byte order mark is skipped)
    int64_t n_bytes; // without the end of line, be it LF or CR LF
    int64_t line;    // from 1, blank lines counted
    int too_long;    // more than line_max bytes; it cannot be read
    uint32_t crc;    // CRC32C of its bytes, a CR at the end included
};

/* ERR_INPUT: not a regular file, gzip, zstd, UTF-16. On error nothing is left to close. */
enum err jsonl_open(struct jsonl *j, const char *path);
/* Accepts a zeroed or closed one. */
void jsonl_close(struct jsonl *j);

/* Call right after jsonl_open(): mark_hash becomes the hash of a file that ends after the first
 * n_bytes. If the file is shorter, mark_hash is never set. */
void jsonl_mark(struct jsonl *j, int64_t n_bytes);

/* The next line that is not blank, in constant memory; *found 0 at the end. Do not call
 * jsonl_read() before the end: both use the same buffer. */
enum err jsonl_next(struct jsonl *j, struct jsonl_line *line, int *found);

/* Frees a buffer that a long line has grown. */
void jsonl_trim(struct jsonl *j);

/* Reads the line at an offset from jsonl_next(), if the line was not too_long. *text is not
 * NUL-terminated and valid until the next call. ERR_CORRUPT: the file changed; ERR_FIT. */
enum err jsonl_read(struct jsonl *j, int64_t offset, const char **text, int64_t *n_bytes);

#endif
