#!/bin/busybox sh
# PID 1 of the emulated host: what a person does on a real one. Each line that begins with `t3:` is
# read by `cargo xtask lab-t3`.
export PATH=/usr/bin:/usr/sbin:/bin HOME=/root NO_COLOR=1
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /root /run /etc
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /dev/hugepages
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
ip link set lo up
for module in /m/*.ko; do
    insmod "$module" || echo "t3: failed module $module"
done
ip link set eth0 up
ip link set eth1 up

# What a run of the lab may change.
state() {
    ip -o link | sed 's/^[0-9]*: //; s/:.*//' | sort
    for device in /sys/bus/pci/devices/*; do
        echo "$device $(readlink "$device/driver") $(cat "$device/driver_override" 2>/dev/null)" \
            "$(cat "$device/sriov_numvfs" "$device/sriov_drivers_autoprobe" 2>/dev/null)"
    done
    cat /proc/sys/vm/nr_hugepages
    ls /tmp /dev/shm
    for process in /proc/[0-9]*; do
        [ -e "$process/exe" ] && readlink "$process/exe"
    done | grep -v busybox | sort
}

# step NAME COMMAND...: runs it, and says how it ended and how long it took.
step() {
    name=$1
    shift
    begun=$(cut -d. -f1 /proc/uptime)
    "$@" >"/tmp/$name.log" 2>&1
    code=$?
    echo "t3: $name $code $(($(cut -d. -f1 /proc/uptime) - begun))"
    sed "s/^/$name| /" "/tmp/$name.log"
    rm -f "/tmp/$name.log"
}

# measured FOLDER: how many series guests on KVM have in a result.
measured() {
    count=$(grep -c '"execution": "nested-kvm"' "$1/result.json")
    echo "$count series"
    [ "$count" -gt 0 ]
}

# lab NAME ARGUMENTS...: one step that measures, and one that looks for the measured series.
lab() {
    guests=$1
    shift
    step "$guests" nearmetal lab run "$@" --execution kvm --guest-cpus 1 --memory-mib 256 \
        --seconds 1 --rounds 1 --out "/root/$guests"
    step "$guests-result" measured "/root/$guests"
    tail -n 12 "/root/$guests"/agent-*.log
}

echo "t3: ready 0 $(cut -d. -f1 /proc/uptime)"
state >/root/before
step plan nearmetal lab plan
lab functions --env sriov --nic eth0
lab nics --env sriov --nic eth0 --nic eth1
lab vhost --env vhost
state >/root/after
step unchanged diff /root/before /root/after
echo "t3: done 0 0"
poweroff -f
