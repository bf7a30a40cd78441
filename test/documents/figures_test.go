package documents

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateFigures = flag.Bool("figures.update", false, "write the figures of the last measurement into the pages")

// measured is what bench/ has written of its last run.
type measured struct {
	Series []struct {
		Measure, Peer string
		X             float64
		Values        map[string][]float64 // one of each round
	}
}

// rounds are the values of a metric, by round.
func (m *measured) rounds(t *testing.T, measure, peer string, x float64, metric string) []float64 {
	t.Helper()
	for _, s := range m.Series {
		if s.Measure == measure && s.Peer == peer && s.X == x && len(s.Values[metric]) > 0 {
			return s.Values[metric]
		}
	}
	t.Fatalf("nobody has measured %s of %s, %s at %v", metric, peer, measure, x)
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// A page has figures of the measurement of bench/ in these places: {} stands for a figure, in the order of the values.
type place struct {
	page, text string
	figures    []string
}

func places(t *testing.T, m *measured) []place {
	get := func(measure, peer string, x float64, metric string) float64 {
		return median(m.rounds(t, measure, peer, x, metric))
	}
	rlock := func(measure string, x float64, metric string) float64 { return get(measure, "rlock", x, metric) }
	against := func(peer string) string { // the median of the ratios of each round, as in the table of results
		mine, other := m.rounds(t, "own", "rlock", 1, "p50"), m.rounds(t, "own", peer, 1, "p50")
		var ratios []float64
		for i := range mine {
			ratios = append(ratios, mine[i]/other[i])
		}
		return fmt.Sprintf("%.2f", median(ratios))
	}
	number := func(format string, v float64) string { return fmt.Sprintf(format, v) }
	k := func(v float64) string { // 49 k, 2.8 k
		if v < 9950 {
			return number("%.1f k", v/1000)
		}
		return number("%.0f k", v/1000)
	}
	thousand := func(v float64) string { return number("%.0f", v/1000) }
	thousands := func(v float64) string { return number("%.0f,000", v/1000) }
	µs := func(v float64) string { return number("%.0f", v*1e6) }
	ms := func(v float64) string { // 7.4, 124
		if v < 0.00995 {
			return number("%.1f", v*1e3)
		}
		return number("%.0f", v*1e3)
	}
	percent := func(v float64) string { return number("%.0f", v*100) }

	many := []float64{64, 256, 512, 1000, 2000}
	least, most := math.Inf(1), 0.0
	for _, x := range many {
		took := rlock("own", x, "server µs")
		least, most = min(least, took), max(most, took)
	}
	const million = 1e6
	server, client := rlock("held", million, "server core"), rlock("held", million, "cores")
	each := rlock("held", million, "each")
	handOver := rlock("handover", 0, "p50")
	hot := func(x float64) float64 { return rlock("processes", x, "hand-overs/s") }
	return []place{
		{"README.md", "| lock and unlock, one goroutine | {} µs | {} × plain commands, {} × redislock, {} × redsync, {} × rueidislock |",
			[]string{µs(rlock("own", 1, "p50")), against("raw"), against("redislock"), against("redsync"), against("rueidislock")}},
		{"README.md", "| pairs a second, 512 goroutines | {} | redislock {}, redsync {}, rueidislock {} |",
			[]string{k(rlock("own", 512, "pairs/s")), k(get("own", "redislock", 512, "pairs/s")), k(get("own", "redsync", 512, "pairs/s")), k(get("own", "rueidislock", 512, "pairs/s"))}},
		{"README.md", "| hand-overs a second, 4 processes of 8; 99 % of waits | {}; {} ms | redislock {}; {} ms. rueidislock {}; {} ms |",
			[]string{k(hot(4)), ms(rlock("processes", 4, "p99")), k(get("processes", "redislock", 4, "hand-overs/s")), ms(get("processes", "redislock", 4, "p99")),
				k(get("processes", "rueidislock", 4, "hand-overs/s")), ms(get("processes", "rueidislock", 4, "p99"))}},
		{"README.md", "| a held lock | {} B | rueidislock {} kB, a goroutine |",
			[]string{number("%.0f", rlock("held", 10000, "each")), number("%.1f", get("held", "rueidislock", 10000, "each")/1000)}},
		{"docs/operations.md", "| lock and unlock, without contention | {} to {} µs of server time a pair, of many callers | {} to {} pairs a second at a full core; plan for half |",
			[]string{number("%.0f", least), number("%.0f", most), thousands(1e6 / most), thousands(1e6 / least)}},
		{"docs/operations.md", "| renewals | {} % of a server's core for a million holds of 30 s: {} µs a renewal | {} holds with a lease of 30 s in half a core |",
			[]string{percent(server), number("%.1f", server*10), thousands(math.Floor(0.5/server*10) * 100_000)}},
		{"docs/operations.md", "| renewals, in the client | {} % of a core for a million holds |", []string{percent(client)}},
		{"docs/operations.md", "| hand-overs of one key | {} a second among 4 processes of 8 goroutines, {} among 16 | the network decides: a hand-over between processes takes {} µs here,",
			[]string{thousands(hot(4)), thousands(hot(16)), µs(handOver)}},
		{"docs/operations.md", "and with a lease of 30 s 100,000 renewals a second, {} % of a core.", []string{percent(server)}},
		{"docs/faq.md", "A million held locks take 181 MB of Redis and {} MB here, {} % of a core here and {} % of one at Redis for their renewals:",
			[]string{number("%.0f", each), percent(client), percent(server)}},
		{"docs/faq.md", "It hands over inside a process without Redis, {} thousand times a second in our [measurement]", []string{thousand(rlock("crowd", 64, "hand-overs/s"))}},
		{"docs/faq.md", "keeps the order of all processes in Redis, {} thousand times.", []string{number("%.1f", get("types", "FairLock", 64, "hand-overs/s")/1000)}},
		{"docs/faq.md", "of four processes of 8 end within {} ms there.", []string{number("%.0f", rlock("processes", 4, "p99")*1e3)}},
	}
}

// Figures on the pages are those of the last run of bench/: docs/benchmarks/results.json.
func TestFiguresAreThoseOfTheMeasurement(t *testing.T) {
	t.Parallel()
	var m measured
	if err := json.Unmarshal([]byte(read(t, "docs/benchmarks/results.json")), &m); err != nil {
		t.Fatal(err)
	}
	for _, p := range places(t, &m) {
		parts := strings.Split(p.text, "{}")
		if len(parts) != len(p.figures)+1 {
			t.Fatalf("%d figures for %q", len(p.figures), p.text)
		}
		want, form := parts[0], regexp.QuoteMeta(parts[0])
		for i, figure := range p.figures {
			want += figure + parts[i+1]
			form += `[\d,.]+(?: k)?` + regexp.QuoteMeta(parts[i+1])
		}
		text := read(t, p.page)
		found := regexp.MustCompile(form).FindString(text)
		switch {
		case found == "":
			t.Errorf("%s has nothing of the form %q", p.page, p.text)
		case found != want && *updateFigures:
			text = strings.Replace(text, found, want, 1)
			if err := os.WriteFile(filepath.Join(root, p.page), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		case found != want:
			t.Errorf("%s says\n%s\nand was measured\n%s\n(go test ./test/documents -run Figures -args -figures.update writes it)", p.page, found, want)
		}
	}
}
