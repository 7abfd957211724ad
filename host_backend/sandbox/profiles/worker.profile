# What the worker's own code, the C++ library and libc need, whatever the driver.
# Descriptors: the control socket, memory files, the log's pipe, a TCP session's socket.
read
write
readv
writev
pread64
pwrite64
lseek
close
fstat
newfstatat
dup3              # another socket in the place of a lost one of TCP (ivshmem_ring/tcp/connection_loss.cc)
ftruncate
fcntl 1           # F_GETFD
fcntl 2           # F_SETFD
fcntl 3           # F_GETFL
fcntl 4           # F_SETFL
fcntl 1030        # F_DUPFD_CLOEXEC
fcntl 1033        # F_ADD_SEALS
fcntl 1034        # F_GET_SEALS
ioctl 0x44504     # IOCTL_EVTCHN_NOTIFY: interrupts the guest of Xen by the one channel that the worker was given
ioctl 0x5411      # SIOCOUTQ: whether the beat of a TCP session can be sent without waiting
poll
ppoll
eventfd2
epoll_create1     # of a TCP session: its background thread sleeps while another reads (ivshmem_ring/tcp/frame_reader.h)
epoll_ctl
epoll_wait
memfd_create
sendmsg
recvmsg
sendto
recvfrom
shutdown
# By option, at any level. Not SO_LINGER: whoever closes such a socket last may wait for its peer.
setsockopt 1      # TCP_NODELAY
setsockopt 4      # TCP_KEEPIDLE
setsockopt 5      # TCP_KEEPINTVL
setsockopt 6      # TCP_KEEPCNT
setsockopt 9      # SO_KEEPALIVE
setsockopt 20     # SO_RCVTIMEO
getsockopt
openat            # modules of the driver, /proc; what can be opened is Landlock's and the uid's matter
access
readlink
# Memory. None is writable and executable.
mmap 0
mmap 1
mmap 2
mmap 3
mmap 5
munmap
mprotect 0
mprotect 1
mprotect 3
madvise 3         # MADV_WILLNEED
madvise 4         # MADV_DONTNEED
madvise 8         # MADV_FREE
madvise 9         # MADV_REMOVE
madvise 10        # MADV_DONTFORK
madvise 11        # MADV_DOFORK
madvise 14        # MADV_HUGEPAGE
madvise 15        # MADV_NOHUGEPAGE
madvise 16        # MADV_DONTDUMP
madvise 21        # MADV_PAGEOUT
madvise 22        # MADV_POPULATE_READ
madvise 23        # MADV_POPULATE_WRITE
brk
membarrier
# Threads.
futex
clone 0x3d0f00    # as pthread_create: CLONE_VM|FS|FILES|SIGHAND|THREAD|SYSVSEM|SETTLS|PARENT_SETTID|CHILD_CLEARTID
exit
exit_group
set_robust_list
rseq
restart_syscall
sched_yield
getrusage         # of the calling thread: whether others want its processor (ivshmem_ring/transport/waiter.cc)
sched_getaffinity
getpid
gettid
getuid
geteuid
getgid
getegid
prctl 4           # PR_SET_DUMPABLE: while a checkpointer of its user looks at it
prctl 15          # PR_SET_NAME
prctl 16          # PR_GET_NAME
prctl 29          # PR_SET_TIMERSLACK
prlimit64         # of itself
getcpu
rt_sigaction
rt_sigprocmask
rt_sigreturn
rt_sigtimedwait
sigaltstack
tgkill            # of itself
clock_gettime
clock_nanosleep
clock_getres
nanosleep
gettimeofday
uname
sysinfo
getrandom
