"""ouqiang/delay-queue's HTTP protocol: push, pop, finish, delete and get, on a port of its own."""

from duetime.api.ouqiang.door import OuqiangDoor

__all__ = ["OuqiangDoor"]
