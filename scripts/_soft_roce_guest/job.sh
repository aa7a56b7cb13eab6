# What scripts/soft_roce's virtual machine does once it has the host's files: makes the devices, runs the command, gives
# back its output and exit status.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
JOB=/run/vm/job OUT=/dev/ttyS0 STATUS=/dev/null
for port in /sys/class/virtio-ports/*; do
  read -r name <"$port/name"
  case $name in out) OUT=/dev/${port##*/} ;; status) STATUS=/dev/${port##*/} ;; esac
done

finish() {
  sync
  echo "$1" >"$STATUS"
  exec /run/vm/busybox poweroff -f
}

# rxe0 and rxe1 are at the two ends of a cable: what goes from one to the other crosses it.
network() {
  set -e
  ip link set lo up
  ip link add ve0 mtu 4500 type veth peer name ve1 mtu 4500
  ip addr add 10.98.0.1/24 dev ve0
  ip addr add 10.98.0.2/24 dev ve1
  for each in all ve0 ve1; do
    echo 0 >/proc/sys/net/ipv4/conf/$each/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$each/accept_local
  done
  for i in 0 1; do
    ip link set ve$i up
    [[ -z $NETEM ]] || tc qdisc replace dev ve$i root netem $NETEM limit 10000
    rdma link add rxe$i type rxe netdev ve$i
  done
}

WRITABLE=$(<$JOB/writable)
[[ -z $WRITABLE ]] ||
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=none,access=any writable "$WRITABLE" >/dev/ttyS0 2>&1 ||
  finish ""
echo localhost >/proc/sys/kernel/hostname  # which has an address everywhere
NETEM=$(<$JOB/netem)
(network) >/dev/ttyS0 2>&1 || finish ""
(set -a; . $JOB/environment; set +a; cd "$(<$JOB/folder)" && exec setsid bash $JOB/command) </dev/null >"$OUT" 2>&1
finish $?
