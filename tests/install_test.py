#!/usr/bin/env python3
"""make install, uninstall and dist: install_test.py [SLUICE] [--only PART]

An installed tree works where it stands, the man page has no warnings, shells complete words, and uninstall leaves what was there
before. The program is not built again: it is what the other tests test.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from trial import HERE, read, run_parts

TREE = os.path.dirname(HERE)
EXE = "usr/local/bin/sluice"
PLAN = ["plan", "-m", "configs/opt-30b.cfg", "--machine", "configs/machine-t4.cfg", "--prompt-len", "512", "--gen-len", "32"]


def make(t, p, *words):
    """As a user types it; -o: the program is as it is."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
    done = subprocess.run(["make", "CUDA=0", "-o", "sluice", *words], cwd=TREE, env=env, capture_output=True, text=True)
    t.check(done.returncode == 0, f"make {' '.join(words)}: {done.returncode}, {done.stderr[-400:]!r}")
    return done


def tree(folder):
    """Every path below it; those of folders end in /."""
    return {os.path.relpath(os.path.join(d, n), folder) + ("/" if n in dirs else "")
            for d, dirs, names in os.walk(folder) for n in [*dirs, *names]}


def install(t, p):
    root = p.at("root")
    make(t, p, "install", f"DESTDIR={root}")
    return root


def installs(t, p, _):
    """What is where; the program, away from the sources, finds what came with it; uninstall takes all of it away."""
    root = p.at("root")
    os.makedirs(os.path.join(root, "usr/local/share/man"))
    os.makedirs(os.path.join(root, "usr/local/share/zsh/site-functions"))
    with open(os.path.join(root, "usr/local/share/man/theirs"), "w", encoding="utf-8") as f:
        f.write("of another program")
    before = tree(root)
    install(t, p)
    found = tree(root)
    configs = {f"usr/local/share/sluice/configs/{n}" for n in os.listdir(os.path.join(TREE, "configs")) if n.endswith(".cfg")}
    t.check(len(configs) > 20 and configs | {EXE, "usr/local/share/man/man1/sluice.1", "usr/local/share/sluice/configs/in.jsonl"} <= found,
            f"installed: {sorted(found)}")
    header = {"usr/local/include/sluice.h", "usr/local/lib/libsluice.so.0", "usr/local/lib/pkgconfig/sluice.pc"}
    t.check(header <= found, f"the library: {sorted(header - found)} is missing")
    example = ["-I" + p.at("root/usr/local/include"), p.at("root/usr/local/share/doc/sluice/example.c"), "-L" + p.at("root/usr/local/lib"), "-lsluice"]
    done = subprocess.run(["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o", p.at("example"), *example], capture_output=True, text=True)
    t.check(done.returncode == 0, f"the example of the library: {done.stderr[-300:]!r}")
    done = subprocess.run([p.at("example"), "nothing.gguf", "a"], env={**p.env, "LD_LIBRARY_PATH": p.at("root/usr/local/lib")}, capture_output=True, text=True)
    t.check(done.returncode == 5 and "nothing.gguf" in done.stderr, f"the example: {done.returncode}, {done.stderr!r}")
    binary = os.path.join(root, EXE)
    t.check(b".debug_info" not in read(binary) and os.access(binary, os.X_OK), "the program is not stripped")
    shutil.move(root, p.at("moved"))
    os.mkdir(p.at("elsewhere"))

    def sluice(*words):
        return subprocess.run([p.at("moved/" + EXE), *words], cwd=p.at("elsewhere"), env=p.env, capture_output=True, text=True)

    t.check(sluice("--version").stdout == p.sluice("--version").out, "another version is installed")
    done = sluice(*PLAN)
    t.check(done.returncode == 0 and "opt-30b" in done.stdout, f"configs by name: {done.returncode}, {done.stderr[-300:]!r}")
    found = sluice("inspect", "configs/opt-30b.cfg")
    t.check(found.returncode == 0, f"inspect configs/opt-30b.cfg: {found.stderr[-300:]!r}")
    done = sluice("inspect", "configs/none.cfg")
    t.check(done.returncode == 5 and "configs/none.cfg" in done.stderr, f"a config that is nowhere: {done.returncode}, {done.stderr[-300:]!r}")
    os.makedirs(p.at("elsewhere/configs"))
    shutil.copy(os.path.join(TREE, "configs/opt-13b.cfg"), p.at("elsewhere/configs/opt-30b.cfg"))
    done = sluice("inspect", "configs/opt-30b.cfg")
    t.check(done.returncode == 0 and done.stdout != found.stdout, "a config of this folder does not come first")
    rows = [json.loads(x) for x in read(p.at("moved/usr/local/share/sluice/configs/in.jsonl")).splitlines()]
    t.check(len(rows) == 2 and "prompt" in rows[0] and "messages" in rows[1], f"the example: {rows}")
    shutil.move(p.at("moved"), root)
    install(t, p)  # over the first
    make(t, p, "uninstall", f"DESTDIR={root}")
    t.check(tree(root) == before, f"uninstall leaves {sorted(tree(root) ^ before)}")
    again = subprocess.run(["make", "uninstall", f"DESTDIR={root}"], cwd=TREE, capture_output=True, text=True)
    t.check(again.returncode != 0 and "not installed here" in again.stderr, f"uninstall of nothing: {again.stderr!r}")


def man(t, p, _):
    """The page has every flag, and neither man nor groff warns."""
    page = p.write("sluice.1", p.sluice("help", "--man").out.encode())
    for name, argv in (("man", ["man", "-l", "--warnings", page]), ("groff", ["groff", "-z", "-ww", "-man", "-Tutf8", page])):
        if not shutil.which(name):
            t.skip(f"no {name}: warnings of the man page")
            continue
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8", "MANPAGER": "cat", "MANWIDTH": "100"})
        t.check(done.returncode == 0 and not done.stderr, f"{name}: {done.stderr[:400]!r}")
    text = read(page).decode().replace("\\-", "-")
    flags = set(re.findall(r"--[a-z][a-z-]+", p.sluice("help", "--markdown").out))
    t.check(len(flags) > 80 and all(f"\\fB{f}\\fR" in text or f in text for f in flags), "the man page lacks flags")
    t.check(text.count("\n.TP\n") > 100 and ".SH EXIT STATUS" in text, "sections of the man page")


BASH = """
source "$1"
complete -p sluice
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; echo "${COMPREPLY[*]}"; }
ask sluice ""
ask sluice bench ""
ask sluice bench io --
ask sluice run --kv-p
ask sluice run --device ""
ask sluice run --kv-policy h2
ask sluice plan -m ""
ask sluice help sc
"""


def bash(t, p, _):
    script = p.write("sluice.bash", p.sluice("help", "--completion", "bash").out.encode())
    done = subprocess.run(["bash", "-euc", BASH, "bash", script], capture_output=True, text=True)
    said = done.stdout.splitlines()
    if not t.check(done.returncode == 0 and len(said) == 9 and not done.stderr, f"bash: {done.stdout!r} {done.stderr!r}"):
        return
    t.check(said[0] == "complete -o default -F _sluice sluice", said[0])
    t.check({"run", "bench", "merge", "help", "version"} <= set(said[1].split()) and "frontier" not in said[1], f"commands: {said[1]}")
    t.check(sorted(said[2].split()) == ["attention", "copies", "frontier", "io", "ops", "throughput"], f"benchmarks: {said[2]}")
    listed = re.findall(r"^  (?:-\w, |    )(--[a-z-]+)", p.sluice("help", "bench", "io").out, re.M)
    t.check(sorted(said[3].split()) == sorted(listed), f"flags of bench io: {said[3]}")
    t.check(said[4].split() == ["--kv-policy", "--kv-positions"], f"--kv-p: {said[4]}")
    t.check(said[5].split() == ["auto", "cpu", "cuda"], f"--device: {said[5]}")
    t.check(said[6].split() == ["h2o", "h2o-mean", "h2o-hf"], f"--kv-policy: {said[6]}")
    t.check(said[7] == "" and said[8] == "score", f"a file, a command: {said[7:]}")


FISH = """
complete -C "sluice "
echo ==
complete -C "sluice bench "
echo ==
complete -C "sluice bench io --"
echo ==
complete -C "sluice run --device "
"""


def fish(t, p, _):
    if not shutil.which("fish"):
        t.skip("no fish: its completion")
        return
    script = p.write("sluice.fish", p.sluice("help", "--completion", "fish").out.encode())
    done = subprocess.run(["fish", "--no-config", "-c", f"source {script}\n{FISH}"], capture_output=True, text=True, env={**p.env, "HOME": p.folder})
    parts = [[x.split("\t")[0] for x in part.strip().splitlines()] for part in done.stdout.split("==\n")]
    if not t.check(len(parts) == 4 and not done.stderr, f"fish: {done.stdout[:300]!r} {done.stderr[:300]!r}"):
        return
    t.check({"run", "bench", "help", "version"} <= set(parts[0]), f"fish: commands: {parts[0]}")
    t.check({"io", "frontier"} <= set(parts[1]) and "run" not in parts[1], f"fish: benchmarks: {parts[1]}")
    t.check({"--runs", "--offload-dir"} <= set(parts[2]) and "--model" not in parts[2], f"fish: flags of bench io: {parts[2]}")
    t.check(parts[3] == ["auto", "cpu", "cuda"], f"fish: --device: {parts[3]}")


ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1= fpath=($1 \\$fpath); autoload -Uz compinit; compinit -u -d $1/dump; bindkey ^I complete-word; zstyle ':completion:*' verbose no"
zpty -w z "zstyle ':completion:*' list-grouped no; zstyle ':completion:*' menu no; echo rea''dy"
zpty -r z all '*ready*'
zpty -n -w z "$2"$'\\t\\t'
zpty -r z all "*$3*"
print -rn -- $all
"""


def zsh(t, p, _):
    """What is typed, and a tab: the word that follows is waited for."""
    if not shutil.which("zsh"):
        t.skip("no zsh: its completion")
        return
    os.mkdir(p.at("functions"))
    p.write("functions/_sluice", p.sluice("help", "--completion", "zsh").out.encode())
    for typed, wanted, other in (("sluice be", "bench", ""), ("sluice bench io --r", "--runs", "--model"), ("sluice run --attn d", "device", "auto")):
        try:
            said = subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", p.at("functions"), typed, wanted], capture_output=True, text=True,
                                  timeout=60, env={**p.env, "TERM": "dumb", "HOME": p.folder}).stdout
        except subprocess.TimeoutExpired as late:
            said = f"(no {wanted}) {late.stdout}"
        t.check(said.endswith(wanted) and not (other and other in said), f"zsh: {typed}: {said[-300:]!r}")


def dist(t, p, _):
    """The archive of the sources knows its commit without git."""
    if not os.path.exists(os.path.join(TREE, ".git")):
        t.skip("no git folder: make dist packs a commit")
        return
    path = os.path.join(TREE, make(t, p, "dist").stdout.strip().splitlines()[-1])
    with tarfile.open(path) as tar:
        tar.extractall(p.folder, filter="data")
    os.unlink(path)
    folder = p.at(os.path.basename(path).removesuffix(".tar.gz"))
    head = subprocess.run(["git", "-C", TREE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["make", "-C", folder, "build/commit"], check=True, capture_output=True)
    t.check(read(os.path.join(folder, "build/commit")).decode() == head[:12] + "\n", "the commit of the archive")


def image(t, p, _):
    """The Dockerfile installs the libraries that the program loads."""
    if not shutil.which("dpkg"):
        t.skip("no dpkg: the packages of the image")
        return
    listed = set(re.findall(r"\blib[a-z0-9.-]+", read(os.path.join(TREE, "configs/Dockerfile")).decode().split("FROM ")[2]))
    needed = re.findall(r"NEEDED +(\S+)", subprocess.run(["objdump", "-p", p.binary], capture_output=True, text=True, check=True).stdout)
    t.check(len(needed) > 5, f"libraries: {needed}")
    for name in needed:
        said = subprocess.run(["dpkg", "-S", f"*/{name}"], capture_output=True, text=True).stdout
        packages = {x.split(":")[0] for x in said.splitlines()}
        t.check("libc6" in packages or packages & listed, f"Dockerfile: {name} is of {packages}, not of {sorted(listed)}")


if __name__ == "__main__":
    sys.exit(run_parts(__doc__, (installs, man, bash, zsh, fish, dist, image)))
