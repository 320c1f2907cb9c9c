"""The store on MariaDB and MySQL: one database, shared by processes on several machines."""
