-- cronrun: what is kept of a run of a CronJob, as text:
-- "<state> <nth> <token> <start> <end> <hold id> <process> <error>".
--
--          state       c  claimed, if the lock of the tick is held: its function may begin, or the
--                         claim be taken back
--                      r  it runs, if the lock is held: its function has begun
--                         c and r without the lock: its owner has died, or lost its lease
--                      s  it has succeeded
--                      f  it has failed
--                      b  it was broken off: its caller went away, or it panicked
--                      l  its lease was lost
--          nth         1; 2: it has taken over
--          start, end  by the server's clock, ms; 0: not known. Of c and r it is the end of the
--                      lease
--
--          process     of the caller, as JSON without spaces; -: it is anonymous
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

-- goesOn reports whether a run has no outcome, as far as its record says.
local function goesOn(run)
  return run.state == 'c' or run.state == 'r'
end

-- lost makes a run that was to go on one that nobody runs any more.
local function lost(run)
  run.state, run.stop = 'l', '0'
end

-- isOver reports whether nobody may take a run over: it has an outcome of its own.
local function isOver(run)
  return run.state == 's' or run.state == 'f'
end
