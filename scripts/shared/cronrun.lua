-- cronrun: the record of a run of a CronJob, as text:
-- "<state> <nth> <token> <start> <end> <hold id> <process> <error>".
--
--          state       c  claimed, if the lock of the tick is held: the function may begin, or the
--                         claim may be taken back
--                      r  running, if the lock is held: the function has begun
--                         c and r without the lock: the owner has died, or lost its lease
--                      s  the function has succeeded
--                      f  the function has failed
--                      b  broken off: the caller went away, or the function panicked
--                      l  the lease was lost
--          nth         1; 2 if the run has taken over
--          start, end  by the server's clock, ms; 0 if not known. For c and r the end is the end of
--                      the lease
--
--          process     process of the caller, as JSON without spaces; - if anonymous
--
-- Defines  readRun(text), runText(run), goesOn(run), lost(run), isOver(run). Numbers remain text

local function readRun(text)
  if not text then
    return nil
  end
  local state, nth, token, start, stop, id, who, err = text:match('^(%a) (%d) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  return {state = state, nth = nth, token = token, start = start, stop = stop, id = id, who = who, err = err}
end

local function runText(run)
  return table.concat({run.state, run.nth, run.token, run.start, run.stop, run.id, run.who, run.err}, ' ')
end

-- goesOn reports whether the record of a run has no outcome.
local function goesOn(run)
  return run.state == 'c' or run.state == 'r'
end

-- lost marks a run without an outcome as lost.
local function lost(run)
  run.state, run.stop = 'l', '0'
end

-- isOver reports whether the function has succeeded or failed. Such a run must not be taken over; a run that was broken
-- off or lost may be.
local function isOver(run)
  return run.state == 's' or run.state == 'f'
end
