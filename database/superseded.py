"""What a later job has overtaken: sending it again could tell a provider something older than it knows."""

from sqlalchemy import literal, select

from bulklane.database.tables import delivery, job_resource

_mine, _theirs = job_resource.alias("mine"), job_resource.alias("theirs")
_later = delivery.alias("later")

# of a row of `delivery`: a later turn on a shared resource has a delivery for its record and channel
SUPERSEDED = (
    select(literal(1))
    .select_from(_theirs)
    .join(_mine, (_mine.c.resource == _theirs.c.resource) & (_theirs.c.turn > _mine.c.turn))
    .join(_later, (_later.c.job_no == _theirs.c.job_no) & (_later.c.turn == _theirs.c.turn))
    .where(
        _mine.c.job_no == delivery.c.job_no,
        # a delivery that a retry re-opened has that round's turn
        _mine.c.turn == delivery.c.turn,
        _theirs.c.job_no != delivery.c.job_no,
        _later.c.channel == delivery.c.channel,
        _later.c.key == delivery.c.key,
    )
    .exists()
)
