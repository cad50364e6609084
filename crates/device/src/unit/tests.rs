mod attentions;
mod manage;
mod order;
mod peers;
mod removal;
mod task_sets;
mod time_limit;
