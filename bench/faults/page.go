package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// column is one question to the tries of a library.
type column struct {
	title string
	cell  func(l library, tries []record) string
}

// notable is a time for which two may hold the lock before it counts as shared: what a message between processes takes.
const notable = 50 // ms

var (
	shared   = column{"two holders, the first not notified", sharedCell}
	notified = column{"the first was notified, before or after the next grant", toldCell}
	wrote    = column{"the check said that the lock is held", wroteCell}
	woken    = column{"notified after SIGCONT", func(l library, all []record) string {
		return noticeCell(l, all, func(r record) *float64 { return r.Told })
	}}
	after = column{"notified after the fault", func(l library, all []record) string {
		return noticeCell(l, all, func(r record) *float64 { return r.Notice })
	}}
	lockSaid = column{"`Lock` returned", func(_ library, all []record) string { return saidCell(all, func(r record) string { return r.Lock }) }}
	unlocked = column{"`Unlock` of the first returned", func(_ library, all []record) string { return saidCell(all, func(r record) string { return r.Unlock }) }}
	took     = column{"after", func(_ library, all []record) string { return spread(all, func(r record) *float64 { return r.Took }) }}
	nextIn   = column{"the next got the lock after", nextCell}
	failed   = column{"calls that failed, and were repeated", func(_ library, all []record) string { return sum(all, func(r record) int { return r.Failed }) }}
	hung     = column{"calls that hung", func(_ library, all []record) string { return sum(all, func(r record) int { return r.Hung }) }}
	left     = column{"keys left", keysCell}
)

var columns = map[string][]column{
	"pause":    {wrote, woken, unlocked, nextIn, hung, left},
	"acquire":  {lockSaid, took, nextIn, hung, left},
	"release":  {unlocked, took, nextIn, hung, left},
	"cut":      {shared, notified, after, unlocked, nextIn, failed, hung, left},
	"restart":  {shared, notified, after, unlocked, nextIn, failed, hung, left},
	"resets":   {nextIn, failed, hung, left},
	"kill":     {nextIn, failed, hung, left},
	"two-down": {shared, column{"`Lock` of the first returned after", took.cell}, unlocked, nextIn, failed, hung, left},
	"forgets":  {shared, notified, unlocked, nextIn, failed, hung, left},
}

// page is docs/peers.md.
func (r *results) page() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# The same faults, other libraries\n")
	p("<!-- Written by bench/faults (cd bench && go run ./faults -out ..). Do not edit: change the program, and let it write. -->\n")
	p("One program disturbs each library with the same faults and records what its callers get. Each party is a process with one client; "+
		"the servers are real. Measured on %s: Redis %s, %s. The machine has %d cores, which other programs used too: a few milliseconds say little.\n",
		r.Date, r.Server, r.versions(), r.CPUs)
	p("- Each lock has a lease of %v, renewed. The timeout of a reply is %v, a sixth of the lease, as the 5 s of go-redis are of a lease of 30 s. All else is the default, except that redislock repeats an attempt each 100 ms, that rueidislock has one key instead of three and NOLOOP tracking, and that Redisson has four threads and two idle connections.",
		spaced(r.Lease), spaced(patience(r.Lease)))
	p("- Chance has a part in what happens, so each scenario runs %d times: \"2 of %d\" means two of these runs. A try in which the fault did not hit does not count. "+
		"Times are the median and, in parentheses, the least and the greatest.", r.Tries, r.Tries)
	p("- One clock, of the process that drives all others, has all times. A hold begins when its grant is read there, and ends with a notice, or when a release is ordered. "+
		"Less than %d ms do not count as two holders.", notable)
	p("- \"Notified\" is what the library does without a call (rlock, rueidislock), or what the watchdog of redislock's README does, which the harness has for redislock and redsync. " +
		"A check reads the same without a request, and for redsync `Until`.")
	p("- A caller of a contended lock calls again after an error, for up to five leases. The call whose reply is lost, and each release, are made once. A call has hung if it has no result in five leases.")
	p("- \"—\": the library does not have this. Redisson notifies no holder of a loss; a program can call `isHeldByCurrentThread`, which sends a request. `cancel` of rueidislock returns nothing.\n")
	p("What the libraries document about these limits is [below](#what-the-libraries-document); how they differ without faults is in [Comparison](comparison.md).")
	for _, s := range scenarios {
		r.section(p, s)
	}
	p("\n## What the libraries document\n")
	p("| library | renewal | limits |\n|---|---|---|")
	for _, f := range facts {
		p("| %s | %s | %s |", f.library, f.renewal, f.limits)
	}
	return b.String()
}

func spaced(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

func (r *results) versions() string {
	var all []string
	for _, m := range slices.Sorted(maps.Keys(r.Versions)) {
		all = append(all, m+" "+r.Versions[m])
	}
	return strings.Join(append(all, "rlock of this tree"), ", ")
}

// section has the table of a scenario, and the texts of its errors.
func (r *results) section(p func(string, ...any), s scenario) {
	var head, rule, rows []string
	for _, c := range columns[s.id] {
		head, rule = append(head, c.title), append(rule, "---")
	}
	texts := map[string][]string{}
	for _, l := range libraries {
		tries := r.of(l.Name, s.id)
		if len(tries) == 0 {
			continue
		}
		cells := []string{l.Name}
		for _, c := range columns[s.id] {
			cells = append(cells, c.cell(l, tries))
		}
		rows = append(rows, "| "+strings.Join(cells, " | ")+" |")
		for _, rec := range tries {
			for _, text := range []string{rec.Lock, rec.Unlock} {
				text = masked(text)
				if text, isError := strings.CutPrefix(text, "error: "); isError && !slices.Contains(texts[l.Name], text) {
					texts[l.Name] = append(texts[l.Name], text)
				}
			}
		}
	}
	if rows == nil {
		return
	}
	p("\n## %s\n\n%s\n\n| library | %s |\n|---|%s|\n%s", s.title, s.about, strings.Join(head, " | "), strings.Join(rule, "|"), strings.Join(rows, "\n"))
	for _, note := range notes[s.id] {
		p("\n%s", note)
	}
	if len(texts) == 0 {
		return
	}
	p("\nThe errors:\n")
	for _, l := range libraries {
		for _, text := range slices.Sorted(slices.Values(texts[l.Name])) {
			p("- %s: `%s`", l.Name, strings.ReplaceAll(text, "`", "'"))
		}
	}
}

// wroteCell says how often the holder had no notice at its next step; a library without notices has no such check.
func wroteCell(l library, all []record) string {
	if l.silent {
		return "—"
	}
	return times(all, func(r record) bool { return r.Wrote })
}

func times(all []record, is func(record) bool) string {
	n := 0
	for _, r := range all {
		if is(r) {
			n++
		}
	}
	return fmt.Sprintf("%d of %d", n, len(all))
}

func sum(all []record, of func(record) int) string {
	n := 0
	for _, r := range all {
		n += of(r)
	}
	return fmt.Sprint(n)
}

// values are those that are there, in order.
func values(all []record, of func(record) *float64) (v []float64) {
	for _, r := range all {
		if x := of(r); x != nil {
			v = append(v, *x)
		}
	}
	slices.Sort(v)
	return v
}

// short is a time of so many milliseconds.
func short(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d.Abs() < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", ms)
	case d.Abs() < time.Second:
		return fmt.Sprintf("%.0f ms", ms)
	}
	if d >= 2*time.Minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

func spread(all []record, of func(record) *float64) string {
	v := values(all, of)
	if len(v) == 0 {
		return "—"
	}
	least, most := v[0], v[len(v)-1]
	if short(least) == short(most) {
		return short(least)
	}
	return fmt.Sprintf("%s (%s, %s)", short(v[len(v)/2]), short(least), short(most))
}

// sharedCell says in how many tries two held the lock, and for how long at most.
func sharedCell(l library, all []record) string {
	n, most, open := 0, 0.0, false
	for _, r := range all {
		if r.Shared != nil && *r.Shared > notable {
			n++
			most, open = max(most, *r.Shared), open || r.Open
		}
	}
	text := fmt.Sprintf("%d of %d", n, len(all))
	switch {
	case l.silent && open:
		text += ", without notices"
	case open:
		text += ", until the first released"
	case n > 0:
		text += ", up to " + short(most)
	}
	return text
}

// toldCell says when the first was notified, next to the next grant.
func toldCell(l library, all []record) string {
	if l.silent {
		return "—"
	}
	told := func(r record) *float64 { return r.Told }
	v := values(all, told)
	if len(v) == 0 {
		return fmt.Sprintf("0 of %d", len(all))
	}
	side := func(ms float64) string {
		if ms < 0 {
			return short(-ms) + " before"
		}
		return short(ms) + " after"
	}
	text := fmt.Sprintf("%d of %d, %s", len(v), len(all), side(v[len(v)/2]))
	if least, most := side(v[0]), side(v[len(v)-1]); least != most {
		text += fmt.Sprintf(" (%s, %s)", least, most)
	}
	return text
}

func noticeCell(l library, all []record, of func(record) *float64) string {
	if l.silent {
		return "—"
	}
	text := fmt.Sprintf("%d of %d", len(values(all, of)), len(all))
	if times := spread(all, of); times != "—" {
		text += ", " + times
	}
	return text
}

// saidCell counts successes and errors.
func saidCell(all []record, of func(record) string) string {
	counts := map[string]int{}
	for _, r := range all {
		if text, _, _ := strings.Cut(of(r), ":"); text != "" {
			counts[text]++
		}
	}
	if counts[errNoResult.Error()] == len(all) {
		return "—"
	}
	var parts []string
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d of %d", text, counts[text], len(all)))
	}
	return cmp.Or(strings.Join(parts, ", "), "—")
}

// nextCell says how long the next had to wait, and how often nobody got the lock.
func nextCell(_ library, all []record) string {
	next := func(r record) *float64 { return r.Next }
	got := len(values(all, next))
	switch never := len(all) - got; {
	case got == 0:
		return fmt.Sprintf("never, %d of %d", never, len(all))
	case never > 0:
		return fmt.Sprintf("%s; never, %d of %d", spread(all, next), never, len(all))
	}
	return spread(all, next)
}

// keysCell has the greatest number of keys that were left, and when the last of them expires.
func keysCell(_ library, all []record) string {
	worst := slices.MaxFunc(all, func(a, b record) int { return cmp.Compare(a.Keys, b.Keys) })
	if worst.Keys == 0 {
		return "0"
	}
	if worst.KeyTTL == nil {
		return fmt.Sprintf("%d, without a TTL", worst.Keys)
	}
	return fmt.Sprintf("%d, for %s", worst.Keys, short(*worst.KeyTTL))
}
