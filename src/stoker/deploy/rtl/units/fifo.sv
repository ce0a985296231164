// First in, first out: holds exactly DEPTH words. A shallow one is read at once, as distributed memory is; a deep one
// lies in block memory, whose read register is the last of its words.
module fifo #(
    parameter int W = 8,
    parameter int DEPTH = 16
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [W-1:0] in_data,
    input  logic         in_valid,
    output logic         in_ready,
    output logic [W-1:0] out_data,
    output logic         out_valid,
    input  logic         out_ready
);
    localparam int AW = (DEPTH > 1) ? $clog2(DEPTH) : 1;
    localparam int CW = $clog2(DEPTH + 1);
    localparam bit SHALLOW = DEPTH <= 32;
    localparam logic [AW-1:0] END = AW'(DEPTH - 1);

    logic [AW-1:0] head, tail;
    logic [CW-1:0] count;
    logic push, pop, fetch;

    assign in_ready = count != CW'(DEPTH);
    assign push = in_valid && in_ready;
    assign pop = out_valid && out_ready;

    always_ff @(posedge clk) begin
        if (rst) begin
            head <= '0;
            tail <= '0;
            count <= '0;
        end else begin
            if (push) head <= (head == END) ? '0 : head + 1'b1;
            if (fetch) tail <= (tail == END) ? '0 : tail + 1'b1;
            if (push && !pop) count <= count + 1'b1;
            if (pop && !push) count <= count - 1'b1;
        end
    end

    generate
        if (SHALLOW) begin : shallow
            logic [W-1:0] stored [DEPTH];
            always_ff @(posedge clk) if (push) stored[head] <= in_data;
            assign out_data = stored[tail];
            assign out_valid = count != '0;
            assign fetch = pop;
        end else begin : deep
            (* no_rw_check *) logic [W-1:0] stored [DEPTH];
            logic [W-1:0] word;
            logic held;
            // Words in the memory are those that are neither in the register nor gone.
            assign fetch = (count != CW'(held)) && (!held || out_ready);
            always_ff @(posedge clk) begin
                if (push) stored[head] <= in_data;
                if (fetch) word <= stored[tail];
            end
            always_ff @(posedge clk) begin
                if (rst) held <= 1'b0;
                else if (fetch) held <= 1'b1;
                else if (pop) held <= 1'b0;
            end
            assign out_data = word;
            assign out_valid = held;
        end
    endgenerate
endmodule
