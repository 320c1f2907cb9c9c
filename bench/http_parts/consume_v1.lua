-- Reserve a job, then acknowledge it: every second request is an ack, of whatever was delivered last on any connection.
local headers = { ["Authorization"] = "Bearer " .. os.getenv("TOKEN") }
local path = os.getenv("QUEUE")
local leases, count = {}, 0

function request()
   if count == 0 then
      return wrk.format("POST", path .. "/reserve", headers, '{"ttr":600}')
   end
   local lease = leases[count]
   count = count - 1
   return wrk.format("POST", path .. "/ack", headers, '{"lease":' .. lease .. '}')
end

function response(status, _, body)
   local lease = string.match(body, '"lease":({[^}]*})')
   if status == 200 and lease then
      count = count + 1
      leases[count] = lease
   end
end
