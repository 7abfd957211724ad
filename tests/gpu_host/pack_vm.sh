#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the demo VM for a host where nothing can be installed, such as a rented GPU server: QEMU with its own loader and
# libraries, firmware, guest kernel and initramfs, and run_vm.sh to start them.
# usage: pack_vm.sh OUTPUT_DIR [demo_initramfs.sh options: --build DIR, --program FILE, ...]
# Leaves OUTPUT_DIR/ (start OUTPUT_DIR/run_packed_vm.sh with run_vm.sh's options) and OUTPUT_DIR.tar.gz.
set -euo pipefail
configs=$(cd "$(dirname "$0")/../../vm_configs" && pwd)
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
output=$1
shift
fail() { echo "pack_vm.sh: $*" >&2; exit 1; }
max_bytes=$((40 << 20))

qemu=$(command -v qemu-system-x86_64) || fail "qemu-system-x86_64 is not installed."
kernel=${KERNEL:-$("$configs/find_kernel.sh")}
[ ! -e "$output" ] || fail "$output exists already."
mkdir -p "$output/qemu/lib" "$output/qemu/modules" "$output/qemu/share"

# The emulator itself is a module in Debian's QEMU; without it only KVM would work.
modules=$(dirname "$(ls /usr/lib/*/qemu/accel-tcg-x86_64.so)") || fail "accel-tcg-x86_64.so is missing: install qemu-system-x86."
cp "$qemu" "$output/qemu/"
cp "$modules/accel-tcg-x86_64.so" "$output/qemu/modules/"
for file in "$qemu" "$modules/accel-tcg-x86_64.so"; do
  ldd "$file" | sed -nE 's/^\t(.* => )?(\/[^ ]+) \(0x.*/\2/p'
done | sort -u | while read -r library; do
  cp -L "$library" "$output/qemu/lib/"
done
loader=$(basename "$(readelf -l "$qemu" | sed -n 's/.*interpreter: \(.*\)]/\1/p')")
[ -e "$output/qemu/lib/$loader" ] || fail "QEMU's dynamic loader was not found."
for file in bios-256k.bin linuxboot_dma.bin kvmvapic.bin pvh.bin; do
  for folder in /usr/share/seabios /usr/share/qemu /usr/lib/ipxe/qemu; do
    [ -e "$output/qemu/share/$file" ] || [ ! -e "$folder/$file" ] || cp -L "$folder/$file" "$output/qemu/share/"
  done
  [ -e "$output/qemu/share/$file" ] || fail "firmware $file was not found."
done
strip --strip-unneeded "$output/qemu/qemu-system-x86_64" "$output"/qemu/modules/*.so 2> /dev/null || true
find "$output/qemu/lib" -name '*.so*' ! -name "$loader" -exec strip --strip-unneeded {} + 2> /dev/null || true

KERNEL=$kernel "$configs/demo_initramfs.sh" --output "$output/initramfs" "$@"
cp "$kernel" "$output/vmlinuz"
cp "$configs/run_vm.sh" "$output/"
cat > "$output/run_packed_vm.sh" <<'TEXT'
#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts the packed VM: the options of run_vm.sh but for --initramfs and --kernel.
here=$(cd "$(dirname "$0")" && pwd)
case "$here" in *' '*) echo "run_packed_vm.sh: move the pack to a path without blanks." >&2; exit 125 ;; esac
export QEMU_MODULE_DIR=$here/qemu/modules
export QEMU="$here/qemu/lib/@LOADER@ --library-path $here/qemu/lib $here/qemu/qemu-system-x86_64 -L $here/qemu/share"
exec "$here/run_vm.sh" --initramfs "$here/initramfs" --kernel "$here/vmlinuz" "$@"
TEXT
sed -i "s/@LOADER@/$loader/" "$output/run_packed_vm.sh"
chmod +x "$output/run_packed_vm.sh"
[ "${ARCHIVE:-yes}" != no ] || exit 0  # who calls makes one of its own
tar -C "$(dirname "$output")" -c "$(basename "$output")" | gzip -9 > "$output.tar.gz"
bytes=$(stat -c %s "$output.tar.gz")
[ "$bytes" -le "$max_bytes" ] || fail "$output.tar.gz has $((bytes >> 20)) MiB, more than $((max_bytes >> 20))."
echo "pack_vm.sh: $output.tar.gz, $((bytes >> 20)) MiB; unpacked $(du -sm "$output" | cut -f1) MiB"
