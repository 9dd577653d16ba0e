/* offload/cgroup.c - see cgroup.h.
 *
 * Note: the page cache of a group counts as usage, and the kernel reclaims it before it kills a
 * process. limit - usage alone would be 0.5 GiB in a 70 GiB group that has just read a model file.
 */
#include "offload/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX 64 // ancestors looked at

/* Where one hierarchy is mounted, and the group of this process in it. */
struct hierarchy {
    char mount[PATH_MAX];  // directory of the mount point, without `root`
    char inside[PATH_MAX]; // path of the mounted directory in the hierarchy: "/" or a container's
    char group[PATH_MAX];  // this process's path in the hierarchy
};

enum version { V1, V2 };

/* ---- small readers ---- */

static FILE *file_open(const char *root, const char *directory, const char *name)
{
    char full[2 * PATH_MAX];
    int n = snprintf(full, sizeof full, "%s%s/%s", root, directory, name);
    return n < (int)sizeof full ? fopen(full, "re") : NULL;
}

/* The decimal number at the start of the text; `otherwise` if there is none ("max"). */
static int64_t number_parse(const char *text, int64_t otherwise)
{
    char *end;
    long long v = strtoll(text, &end, 10); // saturates at LLONG_MAX, which also means no limit
    return end == text ? otherwise : v;
}

static int64_t number_read(const char *root, const char *group, const char *name, int64_t otherwise)
{
    char line[64];
    FILE *f = file_open(root, group, name);
    if (!f)
        return otherwise;
    int64_t v = fgets(line, sizeof line, f) ? number_parse(line, otherwise) : otherwise;
    fclose(f);
    return v;
}

/* Page cache of the group in bytes: the sum of two counters of memory.stat. */
static int64_t stat_sum(const char *root, const char *group, const char *a, const char *b)
{
    char line[256], key[128];
    long long value;
    int64_t sum = 0;
    FILE *f = file_open(root, group, "memory.stat");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%127s %lld", key, &value) == 2 && value > 0 &&
            (strcmp(key, a) == 0 || strcmp(key, b) == 0) &&
            __builtin_add_overflow(sum, (int64_t)value, &sum))
            sum = INT64_MAX;
    fclose(f);
    return sum;
}

/* ---- where the groups are ---- */

/* Is `word` one of the comma separated words of `list`? */
static int list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == 0 || at[n] == ',' || at[n] == '\n'))
            return 1;
    return 0;
}

/* mountinfo writes space, tab, newline and backslash of a path as \ and three octal digits. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = 0;
}

/* Fills mount and inside from the first mount of the hierarchy. Returns 0 when there is none. */
static int mount_find(struct hierarchy *h, const char *root, enum version version,
                      const char *controller)
{
    char line[2 * PATH_MAX + 1024];
    FILE *f = file_open(root, "/proc/self", "mountinfo");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        char type[64], options[1024];
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(tail, " - %63s %*s %1023s", type, options) != 2)
            continue;
        if (strcmp(type, version == V2 ? "cgroup2" : "cgroup") != 0)
            continue;
        if (version == V1 && !list_has(options, controller))
            continue;
        found = sscanf(line, "%*s %*s %*s %4095s %4095s", h->inside, h->mount) == 2;
    }
    if (f)
        fclose(f);
    unescape(h->inside);
    unescape(h->mount);
    return found;
}

/* Fills group from /proc/self/cgroup: lines of "id:controllers:path", v2's with an empty middle. */
static int group_find(struct hierarchy *h, const char *root, enum version version,
                      const char *controller)
{
    char line[PATH_MAX + 256];
    FILE *f = file_open(root, "/proc/self", "cgroup");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        controllers++;
        path[strcspn(path, "\n")] = 0;
        if (version == V2 ? controllers[0] != 0 : !list_has(controllers, controller))
            continue;
        if (strlen(path) >= sizeof h->group)
            continue;
        memcpy(h->group, path, strlen(path) + 1);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

/* The directory of this process's group. A container may mount only a part of the hierarchy
 * (`inside`); a group outside this part is the mount point itself. */
static void group_directory(const struct hierarchy *h, char *path, size_t n_path)
{
    const char *rest = h->group;
    size_t n = strlen(h->inside);
    if (strcmp(h->inside, "/") != 0) {
        int is_inside = strncmp(rest, h->inside, n) == 0 && (rest[n] == '/' || rest[n] == 0);
        rest = is_inside ? rest + n : "";
    }
    if (strstr(rest, "..") || strcmp(rest, "/") == 0)
        rest = "";
    if (snprintf(path, n_path, "%s%s", h->mount, rest) >= (int)n_path)
        snprintf(path, n_path, "%s", h->mount);
}

/* ---- limits ---- */

static void memory_visit(struct cgroup_limits *limits, const char *root, enum version version,
                         const char *group)
{
    int64_t limit, soft, usage, cache;
    if (version == V2) {
        soft = number_read(root, group, "memory.high", INT64_MAX);
        limit = min_i64(number_read(root, group, "memory.max", INT64_MAX), soft);
        usage = number_read(root, group, "memory.current", 0);
        cache = stat_sum(root, group, "inactive_file", "active_file");
    } else {
        /* total_ counters include descendants, like the usage */
        limit = number_read(root, group, "memory.limit_in_bytes", INT64_MAX);
        soft = number_read(root, group, "memory.soft_limit_in_bytes", INT64_MAX);
        usage = number_read(root, group, "memory.usage_in_bytes", 0);
        cache = stat_sum(root, group, "total_inactive_file", "total_active_file");
    }
    const int64_t none = (int64_t)1 << 60; // v1 writes "no limit" as 2^63 less a page
    if (soft >= 0 && soft < none)
        limits->memory_soft_bytes = min_i64(limits->memory_soft_bytes, soft);
    if (limit < 0 || limit >= none)
        return;
    int64_t free_bytes = max_i64(limit - max_i64(max_i64(usage, 0) - cache, 0), 0);
    if (free_bytes >= limits->memory_free_bytes)
        return;
    limits->memory_free_bytes = free_bytes;
    limits->memory_limit_bytes = limit;
    size_t n = strlen(group), max = sizeof limits->memory_group - 1;
    snprintf(limits->memory_group, max + 1, "%s", group + (n > max ? n - max : 0));
}

static void cpu_visit(struct cgroup_limits *limits, const char *root, enum version version,
                      const char *group)
{
    int64_t quota = -1, period = 0;
    if (version == V1) {
        quota = number_read(root, group, "cpu.cfs_quota_us", -1);
        period = number_read(root, group, "cpu.cfs_period_us", 0);
    } else {
        char line[64];
        FILE *f = file_open(root, group, "cpu.max");
        const char *space = f && fgets(line, sizeof line, f) ? strchr(line, ' ') : NULL;
        if (space) {
            quota = number_parse(line, -1);
            period = number_parse(space, 0);
        }
        if (f)
            fclose(f);
    }
    if (quota <= 0 || period <= 0)
        return;
    double cpus = (double)quota / (double)period;
    if (limits->cpus == 0 || cpus < limits->cpus)
        limits->cpus = cpus;
}

/* From the process's group up to the mount point, both included. */
static void hierarchy_walk(struct cgroup_limits *limits, const char *root, enum version version,
                           const char *controller)
{
    struct hierarchy h;
    char group[2 * PATH_MAX];
    if (!mount_find(&h, root, version, controller) || !group_find(&h, root, version, controller))
        return;
    group_directory(&h, group, sizeof group);
    size_t n_mount = strlen(h.mount);
    for (int i = 0; i < GROUPS_MAX; i++) {
        if (!controller || strcmp(controller, "memory") == 0)
            memory_visit(limits, root, version, group);
        if (!controller || strcmp(controller, "cpu") == 0)
            cpu_visit(limits, root, version, group);
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < n_mount)
            break;
        *slash = 0;
    }
}

void cgroup_read(struct cgroup_limits *limits, const char *root)
{
    *limits = (struct cgroup_limits){.memory_free_bytes = INT64_MAX,
                                     .memory_limit_bytes = INT64_MAX,
                                     .memory_soft_bytes = INT64_MAX};
    hierarchy_walk(limits, root, V2, NULL);
    hierarchy_walk(limits, root, V1, "memory");
    hierarchy_walk(limits, root, V1, "cpu");
}
