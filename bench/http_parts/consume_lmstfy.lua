-- Take a job, then acknowledge it: every second request is an ack, of whatever was delivered last on any connection.
local headers = { ["X-Token"] = os.getenv("TOKEN") }
local path = os.getenv("QUEUE")
local taken, count = {}, 0

function request()
   if count == 0 then
      return wrk.format("GET", path .. "?ttr=600", headers)
   end
   local id = taken[count]
   count = count - 1
   return wrk.format("DELETE", path .. "/job/" .. id, headers)
end

function response(status, _, body)
   if status == 200 then
      count = count + 1
      taken[count] = string.match(body, '"job_id":"(%w+)"')
   end
end
