//go:build linux

package soak

import "fmt"

// leastSamples is with how many samples a judge begins: two for each third.
const leastSamples = 6

// What a heap may have more of at the end. Pools of buffers and tables of names are as large as the busiest moment so far has
// made them, and that moment may come late: a tenth, and some for what does not follow from the size. A leak of 100 bytes in
// each use exceeds that in a short run already.
const (
	moreHeap    = 1 << 20
	moreObjects = 10_000
)

// How many connections there are at the most: a client has its pools and its subscription, and the house has a few to each
// server.
const (
	mostOfClient = pool + pipelinePool + 1
	mostOfHouse  = 4
)

// mostPages is how many pages a client makes at the most: one for each operation under way at the same time. Each worker has
// one, and while a server does not reply, one more that it has given up, which clean-ups end: a run of a minute makes four.
const mostPages = 2 * workers

// judge returns what has grown, or was there at a quiet point. It compares the last third of the samples with the first.
// What varies is compared by the least of each third: a leak raises that too, and a busy moment does not.
func judge(samples []sample) (wrong []string) {
	if len(samples) < leastSamples {
		return []string{fmt.Sprintf("only %d samples", len(samples))}
	}
	third := len(samples) / 3
	first, last := samples[:third], samples[len(samples)-third:]
	for _, size := range []struct {
		what string
		of   func(sample) uint64
		more uint64
	}{
		{"bytes of the heap", func(s sample) uint64 { return s.heap }, moreHeap},
		{"objects of the heap", func(s sample) uint64 { return s.objects }, moreObjects},
	} {
		before, after := least(first, size.of), least(last, size.of)
		if after > before+before/10+size.more {
			wrong = append(wrong, fmt.Sprintf("%s: %d, before %d", size.what, after, before))
		}
	}
	for _, by := range grown(leastGoroutines(first), leastGoroutines(last)) {
		wrong = append(wrong, "goroutines of "+by)
	}
	for i, s := range samples {
		for _, there := range s.remains() {
			wrong = append(wrong, fmt.Sprintf("sample %d: %s", i+1, there))
		}
	}
	return wrong
}

// remains is what no quiet point may have.
func (s sample) remains() (wrong []string) {
	exceeds := func(what string, n, most int) {
		if n > most {
			wrong = append(wrong, fmt.Sprintf("%d %s, at most %d", n, what, most))
		}
	}
	exceeds("holds", s.stats.Holds, 0)
	exceeds("waiters", s.stats.Waiters, 0)
	exceeds("clean-ups", s.stats.CleanUps, 0)
	exceeds("pages of a client", s.pages, mostPages)
	exceeds("connections", s.connected, nodes*members*mostOfClient+nodes*mostOfHouse)
	exceeds("subscribed connections", s.subscribed, nodes*members)
	for _, k := range kinds {
		if k.most > 0 {
			exceeds(fmt.Sprintf("keys of kind %q", k.name), s.keys[k.name], k.most)
		}
	}
	if n := len(s.strange); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d keys such as %q", n, s.strange[:min(n, 5)]))
	}
	if n := len(s.channels); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d channels such as %q", n, s.channels[:min(n, 5)]))
	}
	return wrong
}

// least is the least size in some samples.
func least(samples []sample, size func(sample) uint64) uint64 {
	n := size(samples[0])
	for _, s := range samples[1:] {
		n = min(n, size(s))
	}
	return n
}

// leastGoroutines has the least number of each of them in some samples.
func leastGoroutines(samples []sample) map[string]int {
	by := map[string]int{}
	for i, s := range samples {
		for f, n := range s.goroutines {
			if i == 0 {
				by[f] = n
			}
		}
		for f := range by {
			by[f] = min(by[f], s.goroutines[f])
		}
	}
	return by
}
