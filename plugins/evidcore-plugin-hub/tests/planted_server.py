"""What a worker serves in tests: it does what it is asked."""

import ctypes
import sys
import threading
import time


class Server:
    def __init__(self, ask):
        self.count = 0

    def add(self, *numbers):
        self.count += 1
        return {"sum": sum(numbers), "call": self.count}

    def says(self, text):
        print(text)
        sys.stdout.flush()

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
