//! Task sets, task management, unit attentions, and the removal of a unit.

#[path = "../../../../device/src/unit/tests/attentions.rs"]
mod attentions;
#[path = "../../../../device/src/unit/tests/manage.rs"]
mod manage;
#[path = "../../../../device/src/unit/tests/order.rs"]
mod order;
#[path = "../../../../device/src/unit/tests/removal.rs"]
mod removal;
#[path = "../../../../device/src/unit/tests/task_sets.rs"]
mod task_sets;
#[path = "../../../../device/src/unit/tests/time_limit.rs"]
mod time_limit;
