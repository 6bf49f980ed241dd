"""The process that compiles a client's grammar first, where it can do no harm.

``python -m daemons.engine.grammar_check DIRECTORY VOCABULARY`` says ``{"why": ""}`` when it is
ready, then reads one grammar a line, as JSON, and answers with such a line, or why it cannot be
had. A grammar that takes too much time or memory, or breaks the compiler, ends this process and
nothing else. It ends with its input.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import msgspec

from daemons.engine.grammar import BadGrammar, Compiler
from daemons.protocol.generate import Grammar, GrammarKind

CPU_S = 3  # of one grammar; rooms beside it wait so long at most when a rank compiles it
MEMORY_BYTES = 1 << 30  # that a grammar may take beyond what was there before it


def main() -> int:
    """Answer until the input ends."""
    compiler = Compiler(Path(sys.argv[1]), int(sys.argv[2]))
    _say(_verdict(compiler, Grammar(GrammarKind.REGEX, "a")))  # loads all that is loaded once
    _bound_memory()
    for line in sys.stdin.buffer:
        _bound_time()
        _say(_verdict(compiler, msgspec.json.decode(line, type=Grammar)))
    return 0


def _say(why: str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode({"why": why}) + b"\n")
    sys.stdout.buffer.flush()


def _verdict(compiler: Compiler, grammar: Grammar) -> str:
    try:
        compiler.compile(grammar)
    except BadGrammar as error:
        return str(error)
    except MemoryError:
        return f"{grammar.kind}: it takes too much memory to compile"
    return ""


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _bound_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    sys.exit(main())
