package main

import (
	"fmt"
	"time"
)

// scenario is a fault, and what happens around it.
type scenario struct {
	id, title, about string
	quorum           bool // for libraries with several servers; others are for those with one
	run              func(t *trial)
}

var scenarios = []scenario{
	{"pause", "The holder's process is stopped",
		"SIGSTOP until another process has the lock, then SIGCONT. The next step of the first is a check that sends no request.", false, pause},
	{"acquire", "The reply to an acquire is lost",
		"The command runs, and from its reply on the connection is silent. The caller releases the lock if the call succeeds. The next process calls when the first call is over.", false, acquireLost},
	{"release", "The reply to a release is lost",
		"The same, with the release. Another process waits for the lock meanwhile.", false, releaseLost},
	{"cut", "The holder's network is cut",
		"Packets of the holder are lost for two leases. Another process, with a network, waits for the lock.", false, cut},
	{"restart", "The server restarts without its data",
		"It is killed while the lock is held, and starts again, empty. Another process waits for the lock.", false, restart},
	{"resets", "Connections of waiters are reset",
		"Three callers of one process wait. Their connections are reset ten times, every tenth of a second, and then the holder releases the lock. Each caller releases it too; the time is until the last of the three has got it.", false, resets},
	{"kill", "The holder's process is killed",
		"SIGKILL. Another process waits for the lock.", false, kill},
	{"two-down", "Two of five servers are dead",
		"A process takes the lock and releases it; another waits meanwhile.", true, twoDown},
	{"forgets", "A server of the majority forgets its vote",
		"Two of five servers are dead while the lock is taken, and start again, empty. Then one of the other three restarts without its data. Another process waits for the lock.", true, forgets},
}

func pause(t *trial) {
	first := t.party(t.addrs()...)
	t.granted(first, key)
	second, e := t.queue(t.addrs()...)
	if told := first.ask(); told() {
		t.Fatal("the check before the fault said that the lock is lost")
	}
	first.stop()
	stopped := time.Now()
	if !t.next(e, stopped) {
		t.Fatal("nobody got the lock of the stopped process")
	}
	if !first.stopped() {
		t.Fatal("the process was not stopped when the lock was granted")
	}
	lost := first.notice()
	write := first.ask() // the next thing that the process does
	resumed := time.Now()
	first.resume()
	t.rec.Wrote = !write()
	t.outlived(lost, &entry{at: resumed}, resumed)
	t.unlock(first)
	t.leave(second, "main")
}

func acquireLost(t *trial) {
	second := t.party(t.addrs()...)
	first, proxy := t.through()
	hit := t.silenced(proxy)
	begin := time.Now()
	r, ok := first.send("main", "lock", key).wait(t.bound())
	if !hit() {
		t.Fatal("no command had the name of the lock")
	}
	switch {
	case !ok:
		t.rec.Hung++
		t.rec.Lock = "no return"
	default:
		t.rec.Lock, t.rec.Took = said(r), ms(r.at.Sub(begin))
	}
	proxy.Handle(nil)
	over := time.Now()
	if ok && r.outcome == "ok" {
		first.send("main", "unlock", key).wait(t.bound())
	}
	e := t.enter(second, "main")
	if t.next(e, over) {
		t.leave(second, "main")
	} else {
		t.leftOver()
	}
}

func releaseLost(t *trial) {
	first, proxy := t.through()
	t.granted(first, key)
	second, e := t.queue(t.addrs()...)
	hit := t.silenced(proxy)
	begin := time.Now()
	t.unlock(first)
	if !hit() {
		t.Fatal("no command had the name of the lock")
	}
	if t.next(e, begin) {
		t.leave(second, "main")
	}
}

func cut(t *trial) {
	first, proxy := t.through()
	t.granted(first, key)
	second, e := t.queue(t.addrs()...)
	lost := first.notice()
	begin := time.Now()
	proxy.Blackhole(true)
	end := time.AfterFunc(2*t.lease, func() { proxy.Blackhole(false) })
	defer end.Stop()
	if !t.next(e, begin) {
		t.Fatal("nobody got the lock of the process without a network")
	}
	if e.at.Sub(begin) > 2*t.lease {
		t.Fatal("the network was back when the lock was granted")
	}
	t.outlived(lost, e, begin)
	time.Sleep(time.Until(begin.Add(2*t.lease + t.lease/5)))
	t.unlock(first)
	t.leave(second, "main")
}

func restart(t *trial) {
	first := t.party(t.addrs()...)
	t.granted(first, key)
	second, e := t.queue(t.addrs()...)
	lost := first.notice()
	killed := time.Now()
	t.servers[0].Kill()
	t.servers[0].Restart()
	if !t.next(e, killed) {
		if r, ok := lost.wait(0); ok {
			t.rec.Notice = ms(r.at.Sub(killed))
		}
		t.unlock(first)
		return
	}
	t.outlived(lost, e, killed)
	t.unlock(first)
	t.leave(second, "main")
}

func resets(t *trial) {
	const callers = 3
	first := t.party(t.addrs()...)
	t.granted(first, key)
	waiters, proxy := t.through()
	var all []*entry
	for i := range callers {
		all = append(all, t.enter(waiters, fmt.Sprint("caller ", i)))
	}
	time.Sleep(t.lease / 10)
	before := lastConn(proxy)
	for range 10 {
		proxy.ResetAll()
		time.Sleep(100 * time.Millisecond)
	}
	if lastConn(proxy) == before {
		t.Fatal("no connection of the waiters was made again")
	}
	released := time.Now()
	t.release(first, key)
	last := released
	for i, e := range all {
		thread := fmt.Sprint("caller ", i)
		go func() {
			if <-e.done; !e.at.IsZero() {
				waiters.send(thread, "unlock", key).wait(t.bound())
			}
		}()
	}
	served := 0
	for _, e := range all {
		if t.count(e) {
			served++
			last = later(last, e.at)
		}
	}
	if served == callers {
		t.rec.Next = ms(last.Sub(released))
	}
	t.leftOver()
}

func kill(t *trial) {
	first := t.party(t.addrs()...)
	t.granted(first, key)
	second, e := t.queue(t.addrs()...)
	killed := time.Now()
	first.kill()
	if t.next(e, killed) {
		t.leave(second, "main")
	}
}

func twoDown(t *trial) {
	first, second := t.party(t.addrs()...), t.party(t.addrs()...)
	t.servers[3].Kill()
	t.servers[4].Kill()
	begin := time.Now()
	mine := t.enter(first, "main")
	if !t.count(mine) {
		return
	}
	t.rec.Took = ms(mine.at.Sub(begin))
	e := t.enter(second, "main")
	time.Sleep(t.lease / 2)
	if !e.waiting() {
		t.rec.Shared, t.rec.Open = ms(time.Since(e.at)), true
	}
	released := time.Now()
	r, ok := first.send("main", "unlock", key).wait(t.bound())
	if !ok {
		t.rec.Hung++
	} else {
		t.rec.Unlock = said(r)
	}
	if t.next(e, released) {
		t.leave(second, "main")
	}
}

func forgets(t *trial) {
	first, second := t.party(t.addrs()...), t.party(t.addrs()...)
	t.servers[3].Kill()
	t.servers[4].Kill()
	mine := t.enter(first, "main")
	if !t.count(mine) {
		t.Fatal("nobody got the lock with two servers dead")
	}
	if len(t.keys()) == 0 {
		t.Fatal("the first server has no vote to forget")
	}
	lost := first.notice()
	t.servers[3].Restart()
	t.servers[4].Restart()
	t.servers[0].Kill()
	t.servers[0].Restart()
	back := time.Now()
	e := t.enter(second, "main")
	select {
	case <-e.done:
		t.next(e, back)
		t.outlived(lost, e, back)
		t.unlock(first)
	case <-time.After(2 * t.lease):
		t.rec.Shared = ms(0)
		t.unlock(first)
		t.next(e, back)
	}
	if !e.at.IsZero() {
		t.leave(second, "main")
	}
}
