"""Charm4py: all processors add up their numbers. With the argument `serve`, they then wait for clients of CCS."""

from charm4py import charm, Chare, Group, Future, Reducer


class Processor(Chare):
    def add(self, sum):
        self.reduce(sum, charm.myPe(), Reducer.sum)


def main(args):
    sum = Future()
    Group(Processor).add(sum)
    print(f"{charm.numPes()} processors on {charm.numHosts()} hosts: sum {sum.get()}", flush=True)
    if args[1:] != ["serve"]:
        exit()


charm.start(main)
