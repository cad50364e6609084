mod attentions;
mod manage;
mod order;
mod peers;
