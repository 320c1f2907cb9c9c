"""ouqiang/delay-queue's HTTP protocol: push, pop, finish, delete and get, on a port of its own."""

from duetime.protocols.ouqiang.app import OuqiangApp

__all__ = ["OuqiangApp"]
