package rlockui

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/visible"
)

const (
	rowsShown    = 200
	mostRows     = 1000
	peopleShown  = 200
	edgesShown   = 200
	holdersShown = 3
	holdersOfOne = 200 // on the page of a lock
)

// query is what a viewer wants to be shown.
type query struct {
	search string
	filter string // waited, overdue, gone, free; empty for all that are held
	order  string
	rows   int
	lock   string // id of the lock whose page is shown; empty for none

}

func newQuery(v url.Values) query {
	q := query{search: strings.ToLower(visible.Cut(v.Get("q"), longestName)), filter: v.Get("only"), order: v.Get("sort"), lock: v.Get("lock"), rows: rowsShown}
	if n, err := strconv.Atoi(v.Get("rows")); err == nil && n > 0 {
		q.rows = min(n, mostRows)
	}
	return q
}

// view is what a viewer gets, as JSON. Times are in Unix milliseconds.
type view struct {
	Title     string      `json:"title"`
	Now       int64       `json:"now"`
	Read      int64       `json:"read"` // when the latest poll that succeeded has ended; 0 before the first
	Took      int64       `json:"tookMs"`
	Interval  int64       `json:"intervalMs"`
	Error     string      `json:"error,omitempty"` // why the latest poll has failed
	Failed    int64       `json:"failed,omitempty"`
	Writes    bool        `json:"writes"`
	Truncated bool        `json:"truncated"`
	Held      int         `json:"held"`
	Waiters   int         `json:"waiters"`
	Hands     int         `json:"handOvers"`
	Lost      int         `json:"lost"`
	Matched   int         `json:"matched"`
	Locks     []row       `json:"locks"`
	Lock      *page       `json:"lock,omitempty"`
	Clients   []clientRow `json:"clients"`
	ClientsN  int         `json:"clientsTotal"`
	HasGraph  bool        `json:"hasGraph"`
	GraphErr  string      `json:"graphError,omitempty"`
	Edges     []edgeRow   `json:"waits"`
	EdgesN    int         `json:"waitsTotal"`
	EdgesCut  bool        `json:"waitsTruncated"` // there are more than EdgesN
	Cycles    []cycleRow  `json:"cycles"`
	Nodes     []nodeRow   `json:"nodes"`
}

type row struct {
	ID       string      `json:"id"`
	Name     string      `json:"name"`
	Type     string      `json:"type"`
	Mode     string      `json:"mode"`
	Holders  []holderRow `json:"holders"`
	HoldersN int         `json:"holdersTotal"`
	Since    int64       `json:"since"`
	Exact    bool        `json:"sinceExact"`
	Ends     int64       `json:"ends"` // 0 if the lease does not end
	Token    string      `json:"token,omitempty"`
	Waiters  int         `json:"waiters"`
	Hands    int         `json:"handOvers"`
	Rate     float64     `json:"perMinute"`
	Lost     int         `json:"lost"`
	Overdue  bool        `json:"overdue"`
	Gone     bool        `json:"gone"`
	Cycle    bool        `json:"inCycle"`
	Votes    int         `json:"votes,omitempty"`
}

type holderRow struct {
	Who    string `json:"who"` // label or program; empty if unknown
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Client string `json:"client"`
	Hold   string `json:"hold"`
	Ref    string `json:"ref"` // names the hold in a request to end it
	Count  int    `json:"count"`
	Shared bool   `json:"shared"`
	Gone   bool   `json:"gone"`
}

// page is a lock's own page.
type page struct {
	row
	Known  bool       `json:"known"`
	CanEnd bool       `json:"canEnd"` // its holds can be ended
	Events []eventRow `json:"events"` // the latest first
	Edges  []edgeRow  `json:"waits"`
}

type eventRow struct {
	At   int64  `json:"at"`
	Kind string `json:"kind"`
	Text string `json:"text"`
}

type clientRow struct {
	Client string `json:"client"`
	Who    string `json:"who"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Holds  int    `json:"holds"`
	Waits  int    `json:"waits"`
	State  string `json:"state"` // seen, gone, or unknown
	Wrote  int64  `json:"wrote"`
}

type edgeRow struct {
	Waiter  string `json:"waiter"`
	WaiterC string `json:"waiterClient"`
	Lock    string `json:"lock"`
	LockID  string `json:"lockId"`
	Holder  string `json:"holder"`
	HolderC string `json:"holderClient"`
	Since   int64  `json:"since"`
	Cycle   bool   `json:"inCycle"`
}

type cycleRow struct {
	Since int64     `json:"since"`
	Steps []edgeRow `json:"steps"`
}

type nodeRow struct {
	Name   string `json:"name"`
	Error  string `json:"error,omitempty"`
	Took   int64  `json:"tookMs"`
	Holds  int    `json:"holds"`
	Losses int64  `json:"losses"`
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return visible.Cut(err.Error(), longestError)
}

// view returns what a query shows of the latest reading. It sends nothing.
func (u *UI) view(q query) *view {
	u.mu.Lock()
	defer u.mu.Unlock()
	b, now := u.book, time.Now()
	v := &view{
		Title: u.opts.Title, Now: millis(now), Read: millis(b.readAt), Took: b.took.Milliseconds(), Interval: u.opts.Interval.Milliseconds(),
		Writes: u.opts.Allow != nil, Truncated: b.truncated, Held: b.held, Hands: b.hands, Lost: b.lost,
		HasGraph: u.opts.Redis != nil, GraphErr: errorText(b.people.err), Locks: []row{},
	}
	if b.err != nil {
		v.Error, v.Failed = errorText(b.err), millis(b.failed)
	}
	s := newShower(b, now)
	var matched []*entry
	for _, e := range b.sorted {
		v.Waiters += e.waiters
		if s.matches(e, &q) {
			matched = append(matched, e)
		}
	}
	v.Matched = len(matched)
	arrange(matched, q.order, now)
	for _, e := range matched[:min(len(matched), q.rows)] {
		v.Locks = append(v.Locks, s.row(e, holdersShown))
	}
	if q.lock != "" {
		v.Lock = s.page(q.lock, u.canEnd)
	}
	v.Clients, v.ClientsN = s.clients()
	v.Edges, v.EdgesN = s.edges("")
	v.EdgesCut = b.people.cut
	v.Cycles = s.cycles()
	v.Nodes = b.nodeRows()
	return v
}

// shower shows a book at one moment.
type shower struct {
	b       *book
	now     time.Time
	inCycle map[edge]bool
	cycled  map[string]bool // locks, by id
}

func newShower(b *book, now time.Time) *shower {
	s := &shower{b, now, map[edge]bool{}, map[string]bool{}}
	for _, c := range b.people.cycles {
		for _, step := range c.steps {
			s.inCycle[step], s.cycled[step.lock] = true, true
		}
	}
	return s
}

func (s *shower) matches(e *entry, q *query) bool {
	if e.free() != (q.filter == "free") || !strings.Contains(e.folded, q.search) {
		return false
	}
	switch q.filter {
	case "waited":
		return e.waiters > 0
	case "overdue":
		return e.overdue
	case "gone":
		return s.isGone(e)
	case "lost":
		return e.lost > 0
	}
	return true
}

func (s *shower) isGone(e *entry) bool {
	return slices.ContainsFunc(e.holders, func(h rlock.Holder) bool { return s.gone(h.HoldID) })
}

func (s *shower) gone(holdID string) bool {
	p := s.b.people.clients[clientOf(holdID)]
	return p != nil && p.isGone
}

// arrange sorts locks that are sorted by name.
func arrange(all []*entry, order string, now time.Time) {
	by := map[string]func(a, b *entry) int{
		"since":   func(a, b *entry) int { return a.since.Compare(b.since) },
		"waiters": func(a, b *entry) int { return b.waiters - a.waiters },
		"hands":   func(a, b *entry) int { return b.passed - a.passed },
		"lost":    func(a, b *entry) int { return b.lost - a.lost },
		"rest": func(a, b *entry) int {
			x, y := a.ends(), b.ends()
			if x.IsZero() != y.IsZero() {
				return map[bool]int{true: 1, false: -1}[x.IsZero()]
			}
			return x.Compare(y)
		},
	}[order]
	if by != nil {
		slices.SortStableFunc(all, by)
	}
}

func (s *shower) row(e *entry, most int) row {
	r := row{
		ID: e.id, Name: visible.Cut(e.name, longestName), Type: e.typ, Mode: string(e.mode), Holders: []holderRow{}, HoldersN: len(e.holders),
		Since: millis(e.since), Exact: e.isExact, Ends: millis(e.ends()), Waiters: e.waiters, Hands: e.passed,
		Rate: math.Round(e.perMinute(s.now)*10) / 10, Lost: e.lost, Overdue: e.overdue, Gone: s.isGone(e), Cycle: s.cycled[e.id],
	}
	if e.token != 0 {
		r.Token = strconv.FormatInt(e.token, 10) // as text: JavaScript has no integers of 64 bits
	}
	if e.typ == "RedLock" {
		r.Votes = e.votes
	}
	for i := range e.holders[:min(len(e.holders), most)] {
		h := &e.holders[i]
		by := h.Process
		if p := s.b.people.clients[clientOf(h.HoldID)]; p != nil && by == (rlock.Process{}) {
			by = p.process // as of a RedLock, whose votes have no process
		}
		r.Holders = append(r.Holders, holderRow{
			Who: nameOf(&by), Host: visible.Text(by.Host), PID: by.PID, Client: clientOf(h.HoldID),
			Hold: visible.Cut(h.HoldID, longestHold), Ref: refOf(h.HoldID), Count: h.Count, Shared: h.Shared, Gone: s.gone(h.HoldID),
		})
	}
	return r
}

// nameOf returns the label or the program of a process.
func nameOf(p *rlock.Process) string {
	if p.Label != "" {
		return visible.Text(p.Label)
	}
	return visible.Text(p.Program)
}

func (s *shower) page(id string, canEnd func(typ string) error) *page {
	e := s.b.entries[id]
	if e == nil {
		return &page{row: row{Holders: []holderRow{}}, Events: []eventRow{}, Edges: []edgeRow{}}
	}
	p := &page{row: s.row(e, holdersOfOne), Known: true, CanEnd: canEnd(e.typ) == nil, Events: []eventRow{}}
	for _, v := range slices.Backward(e.events) {
		p.Events = append(p.Events, eventRow{millis(v.at), v.kind, v.text})
	}
	p.Edges, _ = s.edges(id)
	return p
}

// person returns the name of a client.
func (s *shower) person(client string) string {
	if p := s.b.people.clients[client]; p != nil {
		if text := p.process.String(); text != "" {
			return visible.Text(text)
		}
	}
	return client
}

func (s *shower) edge(one edge) edgeRow {
	r := edgeRow{
		Waiter: s.person(one.waiter), WaiterC: one.waiter, LockID: one.lock, HolderC: clientOf(one.holdID),
		Since: millis(s.b.people.edges[one]), Cycle: s.inCycle[one],
	}
	if r.Holder = s.person(r.HolderC); r.HolderC == "" {
		r.Holder = visible.Cut(one.holdID, longestHold)
	}
	if e := s.b.entries[one.lock]; e != nil {
		r.Lock = visible.Cut(e.name, longestName)
	}
	return r
}

// edges returns who waits for whom, for one lock or for all.
func (s *shower) edges(lock string) (all []edgeRow, total int) {
	all = []edgeRow{}
	for _, one := range s.b.people.ordered {
		if lock != "" && one.lock != lock {
			continue
		}
		if total++; len(all) < edgesShown {
			all = append(all, s.edge(one))
		}
	}
	return all, total
}

func (s *shower) cycles() []cycleRow {
	all := []cycleRow{}
	for _, c := range s.b.people.cycles {
		one := cycleRow{Since: millis(c.since)}
		for _, step := range c.steps {
			one.Steps = append(one.Steps, s.edge(step))
		}
		all = append(all, one)
	}
	return all
}

// clients returns the first clients.
func (s *shower) clients() (all []clientRow, total int) {
	people := s.b.people.ranked
	all = []clientRow{}
	for _, p := range people[:min(len(people), peopleShown)] {
		state := "unknown"
		switch {
		case p.isGone:
			state = "gone"
		case p.isKnown:
			state = "seen"
		}
		all = append(all, clientRow{p.client, nameOf(&p.process), visible.Text(p.process.Host), p.process.PID, p.holds, p.waits, state, millis(p.wroteAt)})
	}
	return all, len(people)
}

func (b *book) nodeRows() []nodeRow {
	all := []nodeRow{}
	for i, n := range b.nodes {
		all = append(all, nodeRow{"node " + strconv.Itoa(i+1), errorText(n.err), n.took.Milliseconds(), n.holds, n.losses})
	}
	return all
}
