-- Publish a job of 100 bytes, again and again. TOKEN comes from the environment.
wrk.method = "PUT"
wrk.body = string.rep("x", 100)
wrk.headers["X-Token"] = os.getenv("TOKEN")
