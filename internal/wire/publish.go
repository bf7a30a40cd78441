package wire

import "github.com/redis/go-redis/v9"

// PublishMode is how to publish.
type PublishMode string

const (
	PublishAuto    PublishMode = "auto"    // depends on the reply to HELLO
	PublishPlain   PublishMode = "plain"   // PUBLISH
	PublishSharded PublishMode = "sharded" // SPUBLISH
	PublishBoth    PublishMode = "both"
)

// PublishCommand returns how scripts publish: "publish", "spublish" or "both". Before Ready has
// succeeded it is a guess, or "".
func (d *Deployment) PublishCommand() string {
	command, known := d.publishCommand()
	if _, server := d.rdb.(*redis.Client); server && !known {
		return "publish"
	}
	return command
}

// PublishKnown reports whether PublishCommand is known, not a guess.
func (d *Deployment) PublishKnown() bool {
	_, known := d.publishCommand()
	return known
}

func (d *Deployment) publishCommand() (command string, known bool) {
	switch d.cfg.Publish {
	case PublishBoth:
		return "both", true
	case PublishSharded:
		return "spublish", true
	case PublishPlain:
		return "publish", true
	}
	command, known = d.mode.Load().(string)
	return command, known
}
