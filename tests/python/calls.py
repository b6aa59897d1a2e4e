"""What the scripts that try clients have in common: each call is tried by itself and told in one line."""

import sys
import traceback


def same(got, wanted):
    assert got == wanted, f"{got!r} instead of {wanted!r}"


async def found(waiting, what, wanted):
    same(what(await waiting), wanted)


async def refused(waiting, said):
    try:
        await waiting
    except Exception as error:
        assert said in str(error), error
        return
    raise AssertionError("it was not refused")


class Calls:
    def __init__(self):
        self.failed = 0

    def say(self, client, name, verdict):
        ok = verdict is True
        self.failed += not ok
        print(client, name, "ok" if ok else " ".join(str(verdict).split()), sep="\t", flush=True)

    def not_run(self, client, name, why):
        """The call cannot be made here; it counts neither as passed nor as failed."""
        print(client, name, f"not run: {' '.join(why.split())}", sep="\t", flush=True)

    def call(self, client, name, what):
        try:
            what()
        except Exception as error:
            traceback.print_exc()
            return self.say(client, name, f"{type(error).__name__}: {error}")
        self.say(client, name, True)

    def refuses(self, client, name, what, said):
        """The call is refused, and the client shows its user why."""
        try:
            what()
        except Exception as error:
            return self.say(client, name, said in str(error) or f"{type(error).__name__}: {error}")
        self.say(client, name, "it was not refused")

    async def wait(self, client, name, what):
        try:
            await what
        except Exception as error:
            traceback.print_exc()
            return self.say(client, name, f"{type(error).__name__}: {error}")
        self.say(client, name, True)

    def end(self):
        sys.exit(self.failed > 0)
