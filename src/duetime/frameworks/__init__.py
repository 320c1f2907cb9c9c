"""Duetime inside web frameworks: Django, Flask, and ASGI ones such as FastAPI and Starlette.

Each module imports its framework, so import only the one that you use.
"""
