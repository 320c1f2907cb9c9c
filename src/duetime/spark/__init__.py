"""Duetime on Apache Spark: the data source `duetime` and the pipelines around it.

Needs the extra duetime[spark] and a Java runtime; nothing else in Duetime imports this package, and it imports the
kernel, the journal's reader, the client and the store factory only.
"""
