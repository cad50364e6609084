"""Manual pages and completions, judged by the programs that read them."""

import os
import re
import shutil
import subprocess

import pytest

import servers
from verdicts import same

FOLDER = os.path.join(servers.OUT, "pages")
# clap_mangen separates the list of an argument's values by both a blank line and a line break.
KNOWN = "skipping paragraph macro: br "


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "LC_ALL": "C.UTF-8", **environment})


@pytest.fixture(scope="module")
def pages():
    shutil.rmtree(FOLDER, ignore_errors=True)
    done = run(servers.Targe.binary, "man", FOLDER)
    same("targe man ends with", (done.returncode, done.stderr), (0, ""))
    return sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER))


@pytest.fixture(scope="module")
def script():
    def make(shell, name):
        done = run(servers.Targe.binary, "completions", shell)
        same("targe completions ends with", (done.returncode, done.stderr), (0, ""))
        folder = os.path.join(servers.OUT, "completions", shell)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w") as file:
            file.write(done.stdout)
        return file.name
    return make


def test_mandoc_finds_nothing_but_what_clap_always_writes(pages):
    told = run("mandoc", "-T", "lint", "-W", "warning", *pages).stdout.splitlines()
    same("findings", [line for line in told if KNOWN not in line], [])


def test_man_formats_every_page_without_a_warning(pages):
    for page in pages:
        done = run("man", "--warnings", "--encoding=UTF-8", "--local-file", page, MANWIDTH="80")
        same(f"{page}: man ends with", (done.returncode, done.stderr), (0, ""))
        # The page of the configuration file is that of no command.
        assert ("EXIT STATUS" in done.stdout) == page.endswith(".1"), done.stdout


def test_whatis_finds_the_name_of_every_page(pages):
    told = run("lexgrog", *pages).stdout.splitlines()
    names = [re.match(r'.*: "(\S+) - .+"$', line) for line in told]
    same("names", [name and name[1] for name in names], [os.path.basename(page)[:-2] for page in pages])


def test_bash_completes_a_flag_of_a_subcommand(script):
    line = 'source "$1"; COMP_WORDS=(targe serve --gro); COMP_CWORD=2; _targe targe --gro serve; echo "${COMPREPLY[@]}"; complete -p targe'
    done = run("bash", "--norc", "-c", line, "bash", script("bash", "targe"))
    same("bash writes to stderr", done.stderr, "")
    completed, registered = done.stdout.splitlines()
    same("completions", completed.split(), ["--group", "--group-password-file"])
    assert "-F _targe" in registered, registered


def test_zsh_loads_the_completion_from_its_path(script):
    folder = os.path.dirname(script("zsh", "_targe"))
    line = 'fpath=("$1" $fpath); autoload -Uz compinit; compinit -u -D; autoload -Uz +X _targe; print -r -- $_comps[targe]; whence -w _targe'
    done = run("zsh", "-f", "-c", line, "zsh", folder)
    same("zsh says", (done.stdout.splitlines(), done.stderr), (["_targe", "_targe: function"], ""))


def test_fish_completes_a_flag_of_a_subcommand(script):
    line = "source $argv[1]; complete --do-complete 'targe serve --gro'"
    done = run("fish", "--no-config", "-c", line, script("fish", "targe.fish"), HOME=os.path.join(servers.OUT, "completions"))
    same("completions", [line.split("\t")[0] for line in done.stdout.splitlines()], ["--group", "--group-password-file"])
