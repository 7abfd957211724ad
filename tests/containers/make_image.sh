# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that run in a Debian VM with podman.
# make_image PROGRAM...: ./image.tar, an image of Debian's own programs: a C and a C++ library, a shell, sleep and these programs, and where
# ./compat has files, they lie where CUDA's images have a driver's library of their own. It has no loader's cache.
make_image() {
  mkdir -p image/lib64 image/bin image/etc/ld.so.conf.d image/usr/lib image/run image/tmp image/lib/x86_64-linux-gnu image/usr/local/cuda-13.0/compat
  echo 'include /etc/ld.so.conf.d/*.conf' > image/etc/ld.so.conf && echo /lib/x86_64-linux-gnu > image/etc/ld.so.conf.d/x86_64-linux-gnu.conf
  ln -sfn cuda-13.0 image/usr/local/cuda
  [ ! -d compat ] || { cp compat/* image/usr/local/cuda/compat/ && echo /usr/local/cuda/compat > image/etc/ld.so.conf.d/000-cuda-compat.conf; } || return 1
  cp -L /lib64/ld-linux-x86-64.so.2 image/lib64/ && cp -L /lib/x86_64-linux-gnu/lib{c,m,dl,rt,pthread,gcc_s,stdc++}.so.[0-9] image/lib/x86_64-linux-gnu/ &&
    cp -L /bin/dash image/bin/sh && cp -L /bin/sleep /bin/cat "$@" image/bin/ && tar -C image -cf image.tar .
}
