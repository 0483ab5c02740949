"""What a worker serves in tests: it does what it is asked."""

import ctypes
import os
import sys
import threading
import time


class Server:
    def __init__(self, ask):
        self.ask, self.count = ask, 0

    def add(self, *numbers):
        self.count += 1
        return {"sum": sum(numbers), "call": self.count}

    def asks(self, name):
        return self.ask(name)

    def says(self, text):
        print(text)
        sys.stdout.flush()

    def ends(self, status):
        os._exit(status)

    def dies(self):
        ctypes.string_at(0)

    def sleeps(self):
        time.sleep(60)

    def raises(self):
        raise KeyError("glossary.csv")

    def exits(self):
        sys.exit(4)

    def gives(self):
        return object()

    def stays(self):
        threading.Thread(target=time.sleep, args=(60,)).start()


class Unbuilt:
    def __init__(self, ask):
        raise OSError("no such weights")
