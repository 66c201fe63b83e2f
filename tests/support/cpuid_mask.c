/* A processor with fewer instruction sets than this one, for the process that preloads this library and all that it starts.
 *
 * CPUID_MASK_HIDE names flags of /proc/cpuinfo, separated by commas. CPUID faults, the handler answers it without the bits of
 * those flags, and /proc/cpuinfo is read without their names. Every library that asks the processor for its instructions then
 * takes the kernels that it would take there, at full speed. Linux on x86-64 alone.
 *
 * CPUID faults where the processor can make it (its flag cpuid_fault; arch_prctl(2), ARCH_SET_CPUID). Elsewhere the library is
 * also an auditor of the dynamic linker (rtld-audit(7), LD_AUDIT): in each object that is loaded, before its constructors run,
 * CPUID is replaced by an interrupt of the same two bytes' length that no program may raise, which faults alike. Where it
 * stands, objdump says, once for each file; CPUID_MASK_SITES is the folder that keeps its answers.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };
enum { EAX, EBX, ECX, EDX };

/* Intel, Software Developer's Manual, volume 2, CPUID: leaf, subleaf, register, bit. */
static const struct {
    const char *flag;
    unsigned leaf, subleaf, reg, bit;
} FLAGS[] = {
    {"avx512f", 7, 0, EBX, 16},          {"avx512dq", 7, 0, EBX, 17},       {"avx512ifma", 7, 0, EBX, 21},
    {"avx512cd", 7, 0, EBX, 28},         {"avx512bw", 7, 0, EBX, 30},       {"avx512vl", 7, 0, EBX, 31},
    {"avx512vbmi", 7, 0, ECX, 1},        {"avx512_vbmi2", 7, 0, ECX, 6},    {"avx512_vnni", 7, 0, ECX, 11},
    {"avx512_bitalg", 7, 0, ECX, 12},    {"avx512_vpopcntdq", 7, 0, ECX, 14}, {"avx512_vp2intersect", 7, 0, EDX, 8},
    {"avx512_fp16", 7, 0, EDX, 23},      {"amx_bf16", 7, 0, EDX, 22},       {"amx_tile", 7, 0, EDX, 24},
    {"amx_int8", 7, 0, EDX, 25},         {"avx_vnni", 7, 1, EAX, 4},        {"avx512_bf16", 7, 1, EAX, 5},
    {"amx_fp16", 7, 1, EAX, 21},         {"avx_ifma", 7, 1, EAX, 23},       {"avx_vnni_int8", 7, 1, EDX, 4},
    {"avx_ne_convert", 7, 1, EDX, 5},    {"avx_vnni_int16", 7, 1, EDX, 10}, {"avx10", 7, 1, EDX, 19},
};
enum { COUNT = sizeof FLAGS / sizeof *FLAGS };

static int hidden[COUNT];
static const char *const OWN[] = {"LD_PRELOAD", "CPUID_MASK_HIDE", "LD_AUDIT", "CPUID_MASK_SITES"};
enum { OWN_COUNT = sizeof OWN / sizeof *OWN };
static const unsigned char CPUID[2] = {0x0f, 0xa2}, STAND_IN[2] = {0xcd, 0xa2}; /* int 0xa2 */
static char *own_variables[OWN_COUNT];
static int audited;
static struct sigaction next_action = {.sa_handler = SIG_DFL};
static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static FILE *(*real_fopen)(const char *, const char *);

static int set_cpuid(int allowed) { return audited ? 0 : (int)syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static int is_hidden(const char *flag) {
    for (int i = 0; i < COUNT; i++)
        if (hidden[i] && !strcmp(FLAGS[i].flag, flag)) return 1;
    return 0;
}

static void answer(greg_t *regs) {
    unsigned leaf = (unsigned)regs[REG_RAX], subleaf = (unsigned)regs[REG_RCX], found[4];
    set_cpuid(1);
    __cpuid_count(leaf, subleaf, found[EAX], found[EBX], found[ECX], found[EDX]);
    set_cpuid(0);
    for (int i = 0; i < COUNT; i++)
        if (hidden[i] && FLAGS[i].leaf == leaf && FLAGS[i].subleaf == subleaf) found[FLAGS[i].reg] &= ~(1u << FLAGS[i].bit);
    regs[REG_RAX] = found[EAX], regs[REG_RBX] = found[EBX], regs[REG_RCX] = found[ECX], regs[REG_RDX] = found[EDX];
    regs[REG_RIP] += 2;
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    /* SI_KERNEL: the general protection fault of CPUID; a signal that a process sent has another code, and no address is read. */
    if (info->si_code == SI_KERNEL && !memcmp((void *)regs[REG_RIP], audited ? STAND_IN : CPUID, 2)) {
        answer(regs);
        return;
    }
    if (next_action.sa_flags & SA_SIGINFO) {
        next_action.sa_sigaction(signal_number, info, context);
    } else if (next_action.sa_handler == SIG_DFL) {
        real_sigaction(SIGSEGV, &next_action, NULL);
        if (info->si_code <= 0) raise(SIGSEGV); /* a sent signal; a fault comes again by itself */
    } else if (next_action.sa_handler != SIG_IGN) {
        next_action.sa_handler(signal_number);
    }
}

int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    if (!real_sigaction) real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGSEGV) return real_sigaction(number, action, old);
    struct sigaction before = next_action;
    if (action) next_action = *action;
    if (old) *old = before;
    return 0;
}

__sighandler_t signal(int number, __sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &action, &old) ? SIG_ERR : old.sa_handler;
}

/* The file without the names of hidden flags, in memory. */
static int open_cpuinfo(int flags) {
    FILE *file = real_fopen("/proc/cpuinfo", "r");
    if (!file) return -1;
    int memory = memfd_create("cpuinfo", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    char *line = NULL;
    size_t room = 0;
    while (memory >= 0 && getline(&line, &room, file) > 0) {
        if (!strncmp(line, "flags", 5)) {
            char *words = strchr(line, ':') + 1, *state, *word = strtok_r(words, " \n", &state);
            dprintf(memory, "flags\t\t:");
            for (; word; word = strtok_r(NULL, " \n", &state))
                if (!is_hidden(word)) dprintf(memory, " %s", word);
            dprintf(memory, "\n");
        } else {
            dprintf(memory, "%s", line);
        }
    }
    free(line);
    fclose(file);
    lseek(memory, 0, SEEK_SET);
    return memory;
}

static int is_cpuinfo(const char *path) { return path && !strcmp(path, "/proc/cpuinfo"); }

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (!real_open) real_open = dlsym(RTLD_NEXT, "open");
    if (is_cpuinfo(path) && real_fopen) return open_cpuinfo(flags);
    return real_open(path, flags, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (!real_openat) real_openat = dlsym(RTLD_NEXT, "openat");
    if (is_cpuinfo(path) && real_fopen) return open_cpuinfo(flags);
    return real_openat(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) __attribute__((alias("openat")));

FILE *fopen(const char *path, const char *mode) {
    if (!real_fopen) real_fopen = dlsym(RTLD_NEXT, "fopen");
    if (is_cpuinfo(path)) {
        int memory = open_cpuinfo(0);
        return memory < 0 ? NULL : fdopen(memory, "r");
    }
    return real_fopen(path, mode);
}
FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));

static int own(const char *variable) {
    for (int i = 0; i < OWN_COUNT; i++)
        if (!strncmp(variable, OWN[i], strlen(OWN[i])) && variable[strlen(OWN[i])] == '=') return 1;
    return 0;
}

/* Keep the variables where a program starts another with an environment of its own. A child of vfork may not allocate. */
int execve(const char *path, char *const arguments[], char *const given[]) {
    static int (*real_execve)(const char *, char *const[], char *const[]);
    if (!real_execve) real_execve = dlsym(RTLD_NEXT, "execve");
    size_t count = 0;
    while (given && given[count]) count++;
    char *kept[count + OWN_COUNT + 1];
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (!own(given[i])) kept[used++] = given[i];
    for (int i = 0; i < OWN_COUNT; i++)
        if (own_variables[i]) kept[used++] = own_variables[i];
    kept[used] = NULL;
    return real_execve(path, arguments, kept);
}

/* Return the file of the offsets of an object's CPUID instructions, one a line; NULL if there is none. */
static FILE *sites_of(const char *path) {
    struct stat is;
    char kept[PATH_MAX], made[PATH_MAX + 16];
    const char *folder = getenv("CPUID_MASK_SITES");
    if (!folder || stat(path, &is)) return NULL;
    snprintf(kept, sizeof kept, "%s/%lx-%lx-%lx-%lx", folder, is.st_dev, is.st_ino, is.st_mtim.tv_sec, is.st_mtim.tv_nsec);
    FILE *found = fopen(kept, "r");
    if (found) return found;
    snprintf(made, sizeof made, "%s.%d", kept, getpid());
    pid_t child = fork();
    if (!child) {
        unsetenv("LD_AUDIT"), unsetenv("LD_PRELOAD");
        static const char script[] = "objdump -d --no-show-raw-insn \"$0\" | awk '$2 == \"cpuid\" {print $1}' > \"$1\"";
        execl("/bin/sh", "sh", "-c", script, path, made, NULL);
        _exit(127);
    }
    int status = -1;
    if (child > 0 && waitpid(child, &status, 0) == child && !status && !rename(made, kept)) return fopen(kept, "r");
    return NULL;
}

unsigned la_version(unsigned version) { return version; }

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)space, (void)cookie;
    const char *name = strrchr(map->l_name, '/');
    /* The dynamic linker itself has asked already; the answers come from this library; the main program has no name. */
    if (!name || !strncmp(name, "/ld-linux", 9) || !strcmp(name, "/cpuid_mask.so")) return 0;
    FILE *sites = sites_of(map->l_name);
    unsigned long offset, page = sysconf(_SC_PAGESIZE);
    while (sites && fscanf(sites, "%lx:", &offset) == 1) {
        unsigned char *at = (unsigned char *)map->l_addr + offset;
        void *from = (void *)((uintptr_t)at & -page);
        size_t length = ((uintptr_t)at & (page - 1)) + 2;
        if (memcmp(at, CPUID, 2) || mprotect(from, length, PROT_READ | PROT_WRITE)) continue;
        memcpy(at, STAND_IN, 2);
        mprotect(from, length, PROT_READ | PROT_EXEC);
    }
    if (sites) fclose(sites);
    return 0;
}

__attribute__((constructor)) static void start(void) {
    real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    real_open = dlsym(RTLD_NEXT, "open");
    real_fopen = dlsym(RTLD_NEXT, "fopen");
    const char *wanted = getenv("CPUID_MASK_HIDE");
    if (!wanted || !*wanted) return;
    if (!getenv("LD_PRELOAD")) return;
    audited = getenv("LD_AUDIT") != NULL;
    for (int i = 0; i < OWN_COUNT; i++)
        if (getenv(OWN[i]) && asprintf(&own_variables[i], "%s=%s", OWN[i], getenv(OWN[i])) < 0) return;
    char *names = strdup(wanted), *state;
    for (char *name = strtok_r(names, ",", &state); name; name = strtok_r(NULL, ",", &state)) {
        int known = 0;
        for (int i = 0; i < COUNT; i++)
            if (!strcmp(FLAGS[i].flag, name)) hidden[i] = known = 1;
        if (!known) {
            fprintf(stderr, "cpuid_mask: no flag named %s\n", name);
            _exit(2);
        }
    }
    free(names);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    if (real_sigaction(SIGSEGV, &action, NULL) || set_cpuid(0)) {
        fprintf(stderr, "cpuid_mask: this kernel or processor cannot make CPUID fault: %s\n", strerror(errno));
        _exit(2);
    }
}
