// SPDX-License-Identifier: Apache-2.0
// What every function of an instrumented build calls when it begins and ends (-finstrument-functions). call_path.py links this
// into the guest library and the worker; both map CALL_PATH_FILE when they start and write there while its switch is on.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES (1u << 20)

struct Entry {
  uint64_t address;  // of the function, from where its file is mapped
  uint32_t thread;
  uint32_t begins;  // 1: the function begins, 0: it ends
};

struct Side {
  _Atomic uint32_t on;
  _Atomic uint32_t count;  // entries; more than there is room for are counted alone
  struct Entry entries[ENTRIES];
};

__attribute__((visibility("hidden"))) extern const char __ehdr_start;  // of the file that this is linked into
static struct Side* side;

// CALL_PATH_SIDE: 0 in the guest library, 1 in the programs, of which the worker alone is recorded.
__attribute__((constructor)) static void Map(void) {
  if (CALL_PATH_SIDE == 1 && strcmp(program_invocation_short_name, "causeway-worker") != 0) return;
  const int file = open(CALL_PATH_FILE, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* all = mmap(0, 2 * sizeof(struct Side), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (all != MAP_FAILED) side = (struct Side*)all + CALL_PATH_SIDE;
}

static void Note(void* function, uint32_t begins) {
  if (side == 0 || atomic_load_explicit(&side->on, memory_order_relaxed) == 0) return;
  const uint32_t at = atomic_fetch_add(&side->count, 1);
  if (at >= ENTRIES) return;
  side->entries[at] =
      (struct Entry){(uint64_t)function - (uint64_t)&__ehdr_start, (uint32_t)syscall(SYS_gettid), begins};
}

void __cyg_profile_func_enter(void* function, void* caller) {
  (void)caller;
  Note(function, 1);
}

void __cyg_profile_func_exit(void* function, void* caller) {
  (void)caller;
  Note(function, 0);
}
