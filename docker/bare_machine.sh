#!/usr/bin/env bash
# Starts this commit with `make serve` on a Debian that has git, make and python3-venv and nothing else, sends the README's
# first request, and runs every command: `make bare-check`. With `test` after the release, `make test` follows, in some
# ten minutes.
#
#     docker/bare_machine.sh [bookworm|trixie|sid] [test]
#     PORT=18000 docker/bare_machine.sh
#
# Needs root, and `apt-get install debootstrap curl git`. The new machine is a folder, removed at the end, with this machine's
# network: PORT and the two after it must be free. Status 77: Debian's packages could not be had. pip's variables (PIP_INDEX_URL …) and certificates are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
release=${1:-trixie}
port=${PORT:-8000}
patience_s=600

[ "$(id -u)" = 0 ] || { echo "root is needed to make a root file system and to run in it" >&2; exit 1; }
for tool in debootstrap curl git unshare; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: apt-get install debootstrap curl git util-linux" >&2; exit 1; }
done

root=$(mktemp -d)
chmod 755 "$root" # other users enter a machine's root folder, too
server=
finish() {
  if [ -n "$server" ]; then
    kill -KILL -- "-$server" 2> /dev/null || true
  fi
  rm -rf --one-file-system "$root"
}
trap finish EXIT

# Before a command, these run it on the new machine. Its mounts are gone with it.
# shellcheck disable=SC2016
inside=(unshare --mount bash -euc '
  mount --rbind /dev "$0/dev"
  mount -t proc proc "$0/proc"
  exec chroot "$0" /usr/bin/env -C /root/trident HOME=/root PATH=/usr/bin:/bin:/usr/sbin:/sbin "$@"' "$root")

echo "== Debian $release with git, make and python3-venv"
debootstrap --variant=minbase --include=ca-certificates,git,make,python3-venv "$release" "$root" > "$root.log" ||
  { tail "$root.log" >&2; rm "$root.log"; exit 77; } # as test runners say that they could not begin
rm "$root.log"
cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
git clone --quiet --depth 1 "file://$PWD" "$root/root/trident"
"${inside[@]}" python3 --version
if "${inside[@]}" sh -c 'command -v cc gcc c++ clang'; then
  echo "it has a compiler" >&2
  exit 1
fi

echo "== make serve"
set -m # the server gets a process group of its own
"${inside[@]}" make serve \
  SERVE_ARGS="--model-repository=deploy/models --http-port=$port --grpc-port=$((port + 1)) --metrics-port=$((port + 2))" \
  < /dev/null &
server=$!
set +m
deadline=$((SECONDS + patience_s))
until curl --silent --fail --output /dev/null "localhost:$port/v2/health/ready"; do
  kill -0 "$server" 2> /dev/null || { server=; echo "make serve has ended" >&2; exit 1; }
  [ "$SECONDS" -lt "$deadline" ] || { echo "the server is not ready after $patience_s seconds" >&2; exit 1; }
  sleep 1
done

echo "== the README's request, ${SECONDS} seconds after the beginning"
request=$(sed -n '/^curl -s localhost:8000\/v2\/models\/digits\/infer/,/^```/{/^```/q;p}' README.md)
answer=$(bash -euc "${request//localhost:8000/localhost:$port}")
printf '%s\n' "$request" "$answer"
[[ $answer == *:6:six* ]] || { echo "that is not the README's answer" >&2; exit 1; }

echo "== the commands"
"${inside[@]}" .ci/commands "$port"

kill -TERM -- "-$server"
wait "$server" || true # the status of make is that of the signal
server=
if [ "${2-}" = test ]; then
  echo "== make test"
  "${inside[@]}" make test
fi
echo "bare-check: passed on $release"
