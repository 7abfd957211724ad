// SPDX-License-Identifier: Apache-2.0
// This program is the first process of the VM that bench.sh boots. It does what vm_configs/demo_init.sh does in other VMs: it loads the
// kernel module, runs the commands that run_vm.sh has put into the VM, and prints the lines that run_vm.sh looks for. It is no shell script,
// because a shell makes thousands of system calls, and each takes a quarter of a millisecond in this VM. It runs every command as root, and
// expands nothing in it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_WORDS 32

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void Mount(const char* kind, const char* folder) {
  mkdir(folder, 0755);
  if (mount(kind, folder, kind, 0, NULL) != 0)
    fprintf(stderr, "init: %s is not mounted: %s\n", folder, strerror(errno));
}

static void LoadModule(void) {
  const int file = open("/lib/causeway.ko", O_RDONLY | O_CLOEXEC);
  if (file < 0 || syscall(SYS_finit_module, file, "", 0) != 0)
    fprintf(stderr, "init: the kernel module is not loaded: %s\n", strerror(errno));
}

// `line` is "NAME[:USER] COMMAND...", and is cut into its words.
static void Run(char* line) {
  char* words[MOST_WORDS + 1];
  int count = 0;
  for (char* word = strtok(line, " \n"); word != NULL && count < MOST_WORDS; word = strtok(NULL, " \n"))
    words[count++] = word;
  words[count] = NULL;
  if (count < 2) return;
  words[0][strcspn(words[0], ":")] = 0;
  const double began = Now();
  const pid_t child = fork();
  if (child == 0) {
    execv(words[1], words + 1);
    fprintf(stderr, "init: %s: %s\n", words[1], strerror(errno));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) status = 126 << 8;
  printf("EXIT %s %d %.2f %.2f\n", words[0], WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
         began, Now());
}

int main(void) {
  Mount("devtmpfs", "/dev");
  const int console = open("/dev/console", O_RDWR);
  for (int i = 0; console >= 0 && i < 3; ++i) dup2(console, i);
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("BOOTED %.2f\n", Now());
  Mount("proc", "/proc");
  Mount("sysfs", "/sys");
  Mount("tmpfs", "/dev/shm");
  LoadModule();
  setenv("LD_LIBRARY_PATH", "/usr/lib/causeway", 1);
  setenv("LD_PRELOAD", "/programs/processors.so", 1);
  FILE* const commands = fopen("/etc/causeway_commands", "re");
  char line[4096];
  while (commands != NULL && fgets(line, sizeof line, commands) != NULL) Run(line);
  printf("DONE %.2f\n", Now());
  reboot(RB_AUTOBOOT);  // without ACPI nothing switches the VM off; QEMU's -no-reboot ends it
  for (;;) pause();
}
