-- Push a job of 100 bytes, again and again. TOKEN comes from the environment.
wrk.method = "POST"
wrk.body = '{"body":"' .. string.rep("x", 100) .. '"}'
wrk.headers["Authorization"] = "Bearer " .. os.getenv("TOKEN")
