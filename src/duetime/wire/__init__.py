"""The messages of the native API: what goes over the wire, and how it becomes the engine's data types and back.

The server validates with these types and draws its OpenAPI document from them; the client builds and reads the same
ones. So they are lossless: what an embedded engine answers, a remote one answers too.
"""
