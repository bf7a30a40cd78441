package protocol

import (
	"strings"
	"testing"
)

// abilities are what each type can, beside Protocol. A type that can more, or less, changes a line here: nothing is
// inherited unnoticed.
var abilities = map[string]string{
	"lock":        "reentrant adoptable revocable handed-over standBy identified polled",
	"fair":        "reentrant adoptable revocable queue",
	"fenced":      "reentrant adoptable revocable standBy identified polled",
	"spin":        "reentrant adoptable revocable paced",
	"write":       "reentrant adoptable revocable identified queue",
	"read":        "reentrant adoptable revocable identified queue guarded",
	"fairwrite":   "reentrant adoptable revocable queue",
	"fairread":    "reentrant adoptable revocable queue",
	"priority":    "reentrant adoptable revocable queue",
	"election":    "reentrant adoptable revocable queue",
	"once":        "polled",
	"tick":        "polled",
	"places":      "queue",
	"permits":     "taking crowded",
	"fairpermits": "queue taking growing",
}

func abilitiesOf(p Protocol) string {
	var all []string
	can := func(is bool, what string) {
		if is {
			all = append(all, what)
		}
	}
	_, is := p.(Reentrant)
	can(is, "reentrant")
	_, is = p.(Adoptable)
	can(is, "adoptable")
	_, is = p.(Revocable)
	can(is, "revocable")
	_, is = p.(HandedOver)
	can(is, "handed-over")
	_, is = p.(StandBy)
	can(is, "standBy")
	_, is = p.(Identified)
	can(is, "identified")
	_, is = p.(Queue)
	can(is, "queue")
	_, is = p.(Polled)
	can(is, "polled")
	_, is = p.(Taking)
	can(is, "taking")
	_, is = p.(Crowded)
	can(is, "crowded")
	_, is = p.(Growing)
	can(is, "growing")
	_, is = p.(Paced)
	can(is, "paced")
	_, is = p.(Hesitant)
	can(is, "hesitant")
	_, is = p.(Bounded)
	can(is, "bounded")
	_, is = p.(Quorum)
	can(is, "quorum")
	_, is = p.(Guarded)
	can(is, "guarded")
	return strings.Join(all, " ")
}

func TestKinds(t *testing.T) {
	site, _, _ := mini(t)
	ids := map[string]bool{}
	for _, k := range Kinds {
		if ids[k.ID] || KindNamed(k.ID) != k {
			t.Errorf("%s: twice", k.ID)
		}
		ids[k.ID] = true
		if k.Open == nil {
			continue // several servers have it
		}
		p := k.Open(site, namesOf(t, "l"))
		if p.Kind() != k {
			t.Errorf("%s: opens a %s", k.ID, p.Kind().ID)
		}
		if got := abilitiesOf(p); got != abilities[k.ID] {
			t.Errorf("%s can: %s, not: %s", k.ID, got, abilities[k.ID])
		}
		if _, adoptable := p.(Adoptable); k.Adoptable && !adoptable {
			t.Errorf("%s: adoptable: %v, its protocol: %v", k.ID, k.Adoptable, adoptable)
		}
		if k.Family == "" || k.Type == "" {
			t.Errorf("%+v", k)
		}
	}
}
