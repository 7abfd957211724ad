// SPDX-License-Identifier: Apache-2.0
// Prints every NVML call that a program makes, with its arguments and result: how we learn what nvidia-smi
// and the frameworks ask of libnvidia-ml.so.1. Needs no header and no list of names; it forwards everything.
//
//   gcc -O1 -shared -fPIC -o nvml_trace.so tests/gpu_host/nvml_trace.c -ldl
//   NVML_TRACE=/tmp/smi.%p.trace LD_PRELOAD=$PWD/nvml_trace.so nvidia-smi -q
//   ... the same for: nvidia-smi, nvidia-smi -L, nvidia-smi topo -m, nvidia-smi --query-gpu=name,memory.used
//       --format=csv, python3 with torch or jax
//
// NVML_TRACE names the output file, %p is the process id; unset: standard error. It catches what is looked up
// by dlsym (nvidia-smi, PyTorch, NCCL, JAX, nvtop and pynvml all do that), and functions in the private
// tables of nvmlInternalGetExportTable. Lines:
//
//   library PATH                       once, then `export NAME` for each exported name
//   dlsym NAME = found | missing
//   call NAME(a0, a1, a2, a3, a4, a5) caller=0x..   integer registers, whether the function has so many or
//   not;
//                                     text behind a pointer follows in quotes, other bytes as <hex> before
//                                     the call
//   ret NAME = RESULT *a0=<hex> ...   what pointers point at after the call (32 bytes each)
//   table UUID at 0x.. words ...      a private table; its functions are traced as UUID[slot]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kMostStubs = 4096, kStubBytes = 32, kDeep = 64, kDump = 32, kMostSlots = 1024 };

struct Stub {
  void* target;
  char name[72];
};
struct Frame {
  uint64_t index, arguments[6];
  void* back;
};
static struct Stub stubs[kMostStubs];
static int stub_count;
static unsigned char* code;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct Frame frames[kDeep];
static __thread int depth;
static int out = -1;

static void Open(void) {
  if (out >= 0) return;
  const char* chosen = getenv("NVML_TRACE");
  char path[512];
  size_t at = 0;
  out = 2;
  if (chosen == NULL) return;
  for (; *chosen != 0 && at + 16 < sizeof path; ++chosen) {
    if (chosen[0] == '%' && chosen[1] == 'p') {
      at += (size_t)snprintf(path + at, 16, "%d", (int)getpid());
      ++chosen;
    } else {
      path[at++] = *chosen;
    }
  }
  path[at] = 0;
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) out = fd;
}

// The bytes behind a pointer, read so that a wrong one does no harm. 0: not readable.
static size_t Peek(uint64_t address, unsigned char* bytes, size_t count) {
  if (address < 4096) return 0;
  struct iovec to = {bytes, count}, from = {(void*)address, count};
  const ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  return got > 0 ? (size_t)got : 0;
}

static int Describe(char* to, size_t room, uint64_t value) {
  unsigned char bytes[kDump];
  const size_t got = Peek(value, bytes, sizeof bytes);
  size_t text = 0;
  while (text < got && bytes[text] >= 32 && bytes[text] < 127) ++text;
  if (text >= 3 && (text == got || bytes[text] == 0)) return snprintf(to, room, "\"%.*s\"", (int)text, bytes);
  if (got == 0) return snprintf(to, room, "0x%llx", (unsigned long long)value);
  size_t at = (size_t)snprintf(to, room, "<");
  for (size_t i = 0; i < got && at + 4 < room; ++i)
    at += (size_t)snprintf(to + at, room - at, "%02x%s", bytes[i], i % 4 == 3 && i + 1 < got ? " " : "");
  return (int)(at + (size_t)snprintf(to + at, room - at, ">"));
}

static void Line(const char* text, size_t bytes) {
  Open();
  if (write(out, text, bytes) < 0) return;
}

// Called by the code below around every traced function.
__attribute__((visibility("hidden"), used)) void* TraceEnter(uint64_t index, const uint64_t* registers,
                                                             void* back) {
  char line[1024];
  size_t at = (size_t)snprintf(line, sizeof line, "call %s(", stubs[index].name);
  for (int i = 0; i < 6; ++i) {
    if (i != 0) at += (size_t)snprintf(line + at, sizeof line - at, ", ");
    at += (size_t)Describe(line + at, sizeof line - at - 32, registers[i]);
  }
  at += (size_t)snprintf(line + at, sizeof line - at, ") caller=%p\n", back);
  Line(line, at);
  if (depth == kDeep) return NULL;
  struct Frame* frame = &frames[depth++];
  frame->index = index;
  memcpy(frame->arguments, registers, sizeof frame->arguments);
  frame->back = back;
  return stubs[index].target;
}

static void TraceTable(const struct Frame* frame);

__attribute__((visibility("hidden"), used)) void* TraceLeave(uint64_t result) {
  const struct Frame* frame = &frames[--depth];
  char line[1024];
  size_t at = (size_t)snprintf(line, sizeof line, "ret %s = %d", stubs[frame->index].name, (int)result);
  for (int i = 0; i < 6; ++i) {
    unsigned char byte;
    if (Peek(frame->arguments[i], &byte, 1) == 0) continue;
    at += (size_t)snprintf(line + at, sizeof line - at, " *a%d=", i);
    at += (size_t)Describe(line + at, sizeof line - at - 8, frame->arguments[i]);
  }
  line[at++] = '\n';
  Line(line, at);
  if (result == 0 && strcmp(stubs[frame->index].name, "nvmlInternalGetExportTable") == 0) TraceTable(frame);
  return frame->back;
}

// A stub puts its index into r11 and comes here. The return address is exchanged, so that arguments on the
// stack stay where the function expects them.
void TraceCommon(void);
__asm__(
    ".text\n.hidden TraceCommon\n.globl TraceCommon\nTraceCommon:\n"
    "  push %r9\n  push %r8\n  push %rcx\n  push %rdx\n  push %rsi\n  push %rdi\n  push %r11\n"
    "  mov %r11, %rdi\n  lea 8(%rsp), %rsi\n  mov 56(%rsp), %rdx\n  call TraceEnter\n"
    "  pop %r11\n  pop %rdi\n  pop %rsi\n  pop %rdx\n  pop %rcx\n  pop %r8\n  pop %r9\n"
    "  lea 1f(%rip), %r11\n  mov %r11, (%rsp)\n  jmp *%rax\n"
    "1:\n  push %rax\n  sub $8, %rsp\n  mov %rax, %rdi\n  call TraceLeave\n  mov %rax, %r11\n  add $8, "
    "%rsp\n  pop %rax\n"
    "  jmp *%r11\n");

// A function that reports and then does what `target` does. Null: no room.
static void* MakeStub(void* target, const char* name) {
  pthread_mutex_lock(&lock);
  unsigned char* stub = NULL;
  if (code == NULL) {
    void* got = mmap(NULL, kMostStubs * kStubBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    code = got == MAP_FAILED ? NULL : got;
  }
  for (int i = 0; i < stub_count && stub == NULL; ++i) {
    if (stubs[i].target == target && strcmp(stubs[i].name, name) == 0) stub = code + i * kStubBytes;
  }
  if (stub == NULL && code != NULL && stub_count < kMostStubs) {
    const uint32_t index = (uint32_t)stub_count;
    const uint64_t common = (uint64_t)&TraceCommon;
    stubs[index].target = target;
    snprintf(stubs[index].name, sizeof stubs[index].name, "%s", name);
    stub = code + index * kStubBytes;
    memcpy(stub, "\x41\xbb", 2);  // mov $index, %r11d
    memcpy(stub + 2, &index, 4);
    memcpy(stub + 6, "\xff\x25\0\0\0\0", 6);  // jmp *0(%rip)
    memcpy(stub + 12, &common, 8);
    ++stub_count;
  }
  pthread_mutex_unlock(&lock);
  return stub;
}

// The slots of a private table that look like functions are exchanged for stubs, in place where that is
// allowed, so that the program's own copy of the pointer stays good.
static void TraceTable(const struct Frame* frame) {
  uint64_t table = 0;
  unsigned char id[16];
  if (Peek(frame->arguments[0], (void*)&table, 8) != 8 || Peek(frame->arguments[1], id, 16) != 16) return;
  uint64_t words[kMostSlots];
  size_t count = Peek(table, (void*)words, sizeof words) / 8;
  static char line[24 * kMostSlots];
  char uuid[33];
  for (int i = 0; i < 16; ++i) snprintf(uuid + 2 * i, 3, "%02x", id[i]);
  size_t at = (size_t)snprintf(line, sizeof line, "table %s at 0x%llx", uuid, (unsigned long long)table);
  // Most begin with their size in bytes.
  if (count > 0 && words[0] / 8 > 0 && words[0] / 8 < count)
    count = words[0] / 8;
  else if (count > 0 && words[0] / 8 >= count && words[0] < 1u << 20)
    return;  // longer than can be copied
  uint64_t* copy = calloc(kMostSlots, 8);
  if (copy == NULL) return;
  for (size_t i = 0; i < count; ++i) {
    Dl_info info;
    const int function = words[i] > 0x10000 && dladdr((void*)words[i], &info) != 0 &&
                         strstr(info.dli_fname, "nvidia-ml") != NULL;
    char name[72];
    snprintf(name, sizeof name, "%s[%d]", uuid, (int)i);
    void* stub = function ? MakeStub((void*)words[i], name) : NULL;
    copy[i] = stub != NULL ? (uint64_t)stub : words[i];
    if (at + 32 < sizeof line)
      at += (size_t)snprintf(line + at, sizeof line - at, function ? " f" : " %llx",
                             (unsigned long long)words[i]);
  }
  line[at++] = '\n';
  Line(line, at);
  struct iovec from = {&copy, 8}, to = {(void*)frame->arguments[0], 8};
  if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != 8) free(copy);
}

// The names that the library exports, from its own symbol table.
static void ListExports(void* function) {
  static int done;
  Dl_info info;
  struct link_map* map = NULL;
  if (done || dladdr1(function, &info, (void**)&map, RTLD_DL_LINKMAP) == 0 || map == NULL) return;
  done = 1;
  const Elf64_Sym* symbols = NULL;
  const char* strings = NULL;
  for (const Elf64_Dyn* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = (const Elf64_Sym*)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) strings = (const char*)entry->d_un.d_ptr;
  }
  char line[256];
  Line(line, (size_t)snprintf(line, sizeof line, "library %s\n", info.dli_fname));
  if (symbols == NULL || strings == NULL || (const char*)symbols > strings) return;
  for (; (const char*)(symbols + 1) <= strings; ++symbols) {
    if (symbols->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbols->st_info) == STT_FUNC)
      Line(line, (size_t)snprintf(line, sizeof line, "export %.200s\n", strings + symbols->st_name));
  }
}

static void* Looked(const char* name, void* found) {
  if (name == NULL || strncmp(name, "nvml", 4) != 0) return found;
  char line[128];
  if (found != NULL) ListExports(found);
  Line(line,
       (size_t)snprintf(line, sizeof line, "dlsym %.80s = %s\n", name, found != NULL ? "found" : "missing"));
  void* stub = found != NULL ? MakeStub(found, name) : NULL;
  return stub != NULL ? stub : found;
}

__attribute__((visibility("hidden"), used)) void* RealDlsym(void) {
  static void* real;
  if (real == NULL) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (real == NULL) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (real == NULL) abort();
  return real;
}

__attribute__((visibility("hidden"), used)) void* TraceDlsym(void* library, const char* name) {
  return Looked(name, ((void* (*)(void*, const char*))RealDlsym())(library, name));
}

// RTLD_DEFAULT and RTLD_NEXT depend on who calls: those are passed on by a jump.
__asm__(
    ".text\n.globl dlsym\n.type dlsym, @function\ndlsym:\n"
    "  push %rdi\n  push %rsi\n  sub $8, %rsp\n  call RealDlsym\n  add $8, %rsp\n  pop %rsi\n  pop %rdi\n"
    "  cmp $-1, %rdi\n  je 1f\n  test %rdi, %rdi\n  je 1f\n  jmp TraceDlsym\n1:\n  jmp *%rax\n"
    ".size dlsym, . - dlsym\n");
